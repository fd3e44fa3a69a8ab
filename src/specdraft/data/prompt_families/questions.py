"""Short questions: what something is, how to do something, facts and meanings of words."""

from __future__ import annotations

import random

from specdraft.data.prompt_families.words import bank, lines, shuffled

CONCEPT_TASKS = [
    "What is {concept}?",
    "Explain {concept} in one sentence.",
    "Explain to a child what {concept} is.",
    "What is {concept}? Answer in simple words.",
    "Tell me one interesting fact about {concept}.",
    "How would you describe {concept} to a friend?",
    "Write two sentences about {concept}.",
    "What should everybody know about {concept}?",
    "In a few words, what is {concept}?",
]
CONCEPTS = bank("""
    gravity, photosynthesis, evaporation, friction, electricity, magnetism, energy, sound, light, heat, pressure,
    density, an atom, a molecule, a cell, a virus, DNA, evolution, an ecosystem, climate, the water cycle, erosion,
    pollution, recycling, solar power, wind power, a volcano, an earthquake, a hurricane, a rainbow, a glacier,
    a fossil, a galaxy, a comet, a black hole, the solar system, an eclipse, a satellite, a telescope, a microscope,
    an algorithm, a computer program, a database, the internet, a web browser, an operating system, a password,
    encryption, machine learning, a robot, a variable in programming, a loop in programming, a function in programming,
    a budget, a loan, inflation, a tax, insurance, a bank account, interest on savings, supply and demand, democracy,
    a constitution, an election, a law, human rights, a treaty, trade, history, geography, philosophy, psychology,
    biology, chemistry, physics, a fraction, a percentage, an equation, a prime number, a triangle, an angle,
    probability, an average, a metaphor, a noun, a verb, an adjective, a poem, a novel, a fable, a biography, grammar,
    a hypothesis, an experiment, vaccination, nutrition, protein, a vitamin, digestion, the heart, the brain, sleep,
    exercise, meditation, teamwork, patience, honesty, creativity, leadership, friendship, kindness, time management
""")
HOWTO_TASKS = [
    "How do I {action}?",
    "Give me three short steps to {action}.",
    "What is the easiest way to {action}?",
    "What do I need to {action}?",
    "Can you teach me to {action}?",
    "Explain briefly how to {action}.",
    "What mistakes should I avoid when I want to {action}?",
]
ACTIONS = bank("""
    boil an egg, make a cup of tea, cook rice, bake bread, peel garlic, ripen an avocado, store fresh herbs,
    make pancakes, wash a wool sweater, remove a coffee stain, iron a shirt, fold a fitted sheet, clean a mirror,
    unclog a sink, change a light bulb, hang a picture, paint a wall, fix a squeaky door, sharpen a knife,
    plant a seed, water a cactus, grow basil, start a compost pile, train a puppy, bathe a dog, care for a goldfish,
    change a bike tire, check tire pressure, jump-start a car, pack a suitcase, read a map, pitch a tent,
    build a campfire, tie a tie, tie shoelaces, sew on a button, write a thank-you note, write a resume,
    write a cover letter, prepare for an exam, take good notes, give a speech, learn new words, remember names,
    make a budget, open a bank account, save for a trip, create a strong password, back up a phone, take a screenshot,
    send an email, speed up a computer, stop hiccups, treat a small cut, fall asleep early, warm up before a run,
    do a push-up, meditate, apologize to a friend, make a paper airplane
""")
COUNTRIES = bank("""
    France, Germany, Italy, Spain, Portugal, Japan, China, India, Egypt, Kenya, Canada, Mexico, Brazil, Argentina,
    Chile, Peru, Russia, Poland, Greece, Turkey, Sweden, Finland, Ireland, Austria, Hungary, Thailand, Vietnam,
    Australia, South Korea, Cuba
""")
COUNTRY_TASKS = [
    "What is the capital of {country}?",
    "On which continent is {country}?",
    "What language do people speak in {country}?",
    "Which food is {country} famous for?",
    "Name one famous building in {country}.",
    "Which currency is used in {country}?",
    "Describe {country} in two sentences.",
]
WORDS = bank("""
    hot, big, happy, fast, old, light, early, strong, full, rich, easy, clean, loud, wet, sharp, brave, polite, deep,
    wide, high, dark, quiet, sweet, young, empty
""")
WORD_TASKS = [
    'What is the opposite of "{word}"?',
    'Give a synonym of "{word}".',
    'Use the word "{word}" in a sentence.',
    'What does the word "{word}" mean?',
    'Write a short sentence with "{word}" and its opposite.',
]
FACTS = lines("""
    How many days are in a leap year? / How many sides does a hexagon have? / How many legs does a spider have?
    How many minutes are in two hours? / How many continents are there? / How many players are on a soccer team?
    How many strings does a violin have? / How many months have 31 days?
    What color do you get when you mix blue and yellow? / What color do you get when you mix red and white?
    What is the largest planet in the solar system? / What is the smallest prime number?
    What is the longest river in the world? / What is the highest mountain in the world?
    What is the fastest land animal? / What is the largest ocean? / What is the chemical symbol of gold?
    What is the chemical formula of water? / What is the freezing point of water in Celsius?
    What is the boiling point of water in Fahrenheit? / Who wrote Romeo and Juliet? / Who painted the Mona Lisa?
    Who discovered penicillin? / Who invented the telephone? / Who was the first person on the moon?
    Which planet is known as the Red Planet? / Which gas do plants take in from the air?
    Which organ pumps blood through the body? / Which animal is the tallest in the world?
    Which metal is liquid at room temperature? / When did the Second World War end? / When does spring begin?
    Why is the sky blue? / Why do leaves change color in autumn? / Why do we have seasons?
    Why does ice float on water? / Why do cats purr? / Why is the sea salty? / Why do we dream?
    Where do penguins live? / Where does chocolate come from? / Where is the Eiffel Tower?
    """)
HELDOUT = lines("""
    What is a peninsula?
    Explain osmosis in one sentence.
    Explain to a child what a thermometer is.
    Tell me one reason why biodiversity matters.
    How do I descale a kettle?
    Give me three short steps to wrap a present.
    What is the easiest way to get rid of a splinter?
    Which ocean lies between Africa and Australia?
    How many teeth does an adult human have?
    Who composed the music of the ballet Swan Lake?
    Why do onions make us cry?
    What is the difference between a frog and a toad?
    """)


def train() -> list[str]:
    """About 1,850 questions."""
    prompts = [task.format(concept=concept) for task in CONCEPT_TASKS for concept in CONCEPTS]
    prompts += [task.format(action=action) for task in HOWTO_TASKS for action in ACTIONS]
    prompts += [task.format(country=country) for task in COUNTRY_TASKS for country in COUNTRIES]
    prompts += [task.format(word=word) for task in WORD_TASKS for word in WORDS]
    return shuffled(random.Random("questions/train"), prompts + FACTS)


def heldout() -> list[str]:
    """12 questions about subjects that training never names."""
    return list(HELDOUT)
