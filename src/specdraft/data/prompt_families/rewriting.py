"""Requests to rewrite one sentence: composed sentences in two tenses, and whole casual or wordy ones."""

from __future__ import annotations

import random

from specdraft.data.prompt_families.words import bank, draw_distinct, lines, pick, shuffled

SUBJECTS = bank("""
    my brother, my sister, our teacher, the baker, the old man, the young doctor, her neighbor, his uncle, the farmer,
    the tall girl, the new student, our coach, the gardener, the librarian, my best friend, the police officer,
    the nurse, the captain, the little boy, the tired driver, my grandmother, the chef, the tourist, the singer,
    the engineer
""")
# present|past and the rest of the predicate
ACTIONS = [entry.replace("|", " ").split(" ", 2) for entry in bank("""
    waters|watered the plants, cooks|cooked a big dinner, writes|wrote a long letter, cleans|cleaned the kitchen,
    plays|played the piano, walks|walked the dog, paints|painted a picture, drinks|drank a cup of tea,
    reads|read the newspaper, fixes|fixed the broken chair, buys|bought fresh bread, sells|sold old books,
    rides|rode a bicycle to work, feeds|fed the cats, opens|opened the window, closes|closed the shop early,
    tells|told a funny story, sings|sang an old song, drives|drove to the city, visits|visited the museum,
    carries|carried the heavy bags, helps|helped the children, watches|watched the birds, builds|built a small table,
    takes|took the bus home, makes|made a chocolate cake, finds|found a lost key, calls|called a friend,
    runs|ran in the park, draws|drew a map, washes|washed the car, brings|brought some flowers,
    loses|lost the umbrella, sends|sent a short message, teaches|taught a math lesson, catches|caught a fish,
    wears|wore a blue coat, eats|ate an apple, studies|studied the stars, plants|planted a tree,
    forgets|forgot the tickets, cuts|cut the grass
""")]  # fmt: skip
TIMES = bank("""
    in the morning, after lunch, before dinner, in the evening, with great care, without any help, on a rainy day,
    with a smile, at the weekend, during the break, near the river, in the old town
""")
PRESENT_TASKS = lines("""
    Rewrite this sentence in the past tense: {s}
    Change the sentence to the future tense: {s}
    Turn this sentence into a question: {s}
    Make this sentence negative: {s}
    Rewrite the sentence so that the subject is "they": {s}
    """)
PAST_TASKS = lines("""
    Rewrite this sentence in the present tense: {s}
    Rewrite this sentence in the passive voice: {s}
    Write this sentence in capital letters: {s}
    Make this sentence shorter: {s}
    Add one adjective to this sentence: {s}
    What is the verb in this sentence? {s}
    List the nouns in this sentence: {s}
    Continue this story with one more sentence: {s}
    """)
CASUAL = lines("""
    Hey, can you send me that file? / I can't come to the meeting, sorry. / Gimme a minute, I'm busy.
    This food is really bad. / You guys did a great job! / Tell me when you get there.
    What do you want for dinner? / I need this done by Friday. / The bus was late again, so annoying.
    Thanks a lot for the help! / I don't get what you mean. / Let's talk about it later.
    My computer is broken, please fix it. / We messed up your order. / Your price is too high.
    I want my money back. / Could you wait here for a bit? / Nobody told me about the party. / I'm so tired today.
    Stop making so much noise. / The room is way too cold. / I guess we should leave now. / That movie was awesome!
    Don't forget to bring your book. / Sorry I forgot to call you back. / I lost my ticket, what now?
    Pick up the phone, please. / Wanna go for a walk after work? / Your report has lots of mistakes.
    Close the door when you go out.
    """)
CASUAL_TASKS = lines("""
    Make this sentence more formal: {s}
    Rewrite this sentence so that it sounds polite: {s}
    Say the following in a more professional way: {s}
    Rewrite this message as one line of an email: {s}
    Make the following sentence sound friendly: {s}
    """)
WORDY = lines("""
    Due to the fact that it was raining, we made the decision to stay at home for the day.
    At this point in time, I am not able to give you an answer to the question that you asked.
    The meeting that was planned for Monday has been moved to a later date, which is Thursday.
    In my personal opinion, I think that the new park is a very nice place for families to visit.
    She is a person who always arrives on time for each and every lesson that she takes.
    The reason why he was late is because the train that he takes had a long delay.
    There are many people who believe that getting enough sleep is something that is important.
    It is necessary for all visitors to sign their names in the book before they enter the building.
    The house, which is painted in a red color, is located in close proximity to the school.
    We would like to let you know that your package has arrived and is ready to be picked up.
    In the event that you have a question, please do not hesitate to send us a message.
    The dog that lives next door to us makes a lot of noise during the hours of the night.
    He spoke in a loud manner so that every person in the room was able to hear him.
    The teacher gave an explanation of the rules of the game to the students in the class.
    During the course of the summer, the lake is visited by a large number of tourists.
    The soup that my father made yesterday evening was so hot that nobody could eat it at first.
    """)
WORDY_TASKS = lines("""
    Make this sentence shorter: {s}
    Rewrite this in simple words: {s}
    Say this in fewer than ten words: {s}
    Summarize this in one short sentence: {s}
    Fix the style of this sentence: {s}
    Split this into two short sentences: {s}
    """)
WORDS_TASKS = lines("""
    Write these words in upper case: {w}
    Put these words in alphabetical order: {w}
    Write a sentence with these words: {w}
    Turn these words into a numbered list: {w}
    Write the plural of each word: {w}
    """)
WORDS = bank("""
    river, apple, stone, chair, window, cloud, garden, train, pencil, mountain, bread, lamp, forest, bottle, road,
    clock, spoon, flower, ship, letter, table, mirror, horse, island, button, school, car, ladder, kettle, basket
""")
HELDOUT = lines("""
    Rewrite this sentence in the past tense: The violinist practices a difficult piece behind the theater.
    Turn this sentence into a question: The astronaut repairs a solar panel outside the station.
    Make this sentence negative: Their accountant checks every invoice twice.
    Rewrite this sentence in the passive voice: A curious raccoon knocked over the garbage can.
    Make this sentence more formal: Yeah, we totally ran out of chairs.
    Rewrite this sentence so that it sounds polite: Move your suitcase, it's in my way.
    Make this sentence shorter: The carpenter who we hired last spring is a man who does very good work with wood.
    Rewrite this in simple words: The committee reached an overwhelming consensus regarding the annual budget.
    Write these words in upper case: hammer, velvet, penguin, compass
    Put these words in alphabetical order: walrus, donkey, falcon, otter
    """)


def _sentence(rng: random.Random, tense: int) -> str:
    *verbs, rest = pick(rng, ACTIONS)
    sentence = f"{pick(rng, SUBJECTS)} {verbs[tense]} {rest} {pick(rng, TIMES)}."
    return sentence[0].upper() + sentence[1:]


def train() -> list[str]:
    """2,800 prompts: 2,254 on composed sentences, 246 on whole ones and 300 on lists of words."""
    rng = random.Random("rewriting/train")
    tasks = [(task, 0) for task in PRESENT_TASKS] + [(task, 1) for task in PAST_TASKS]

    def composed(attempt: int) -> str:
        task, tense = tasks[attempt % len(tasks)]
        return task.format(s=_sentence(rng, tense))

    def word_list(attempt: int) -> str:
        return WORDS_TASKS[attempt % len(WORDS_TASKS)].format(w=", ".join(shuffled(rng, WORDS)[:4]))

    whole = [task.format(s=s) for task in CASUAL_TASKS for s in CASUAL]
    whole += [task.format(s=s) for task in WORDY_TASKS for s in WORDY]
    return shuffled(rng, whole + draw_distinct(2500 - len(whole), composed) + draw_distinct(300, word_list))


def heldout() -> list[str]:
    """10 known tasks on sentences that no bank can compose."""
    return list(HELDOUT)
