"""Requests for short lists: topics times phrasings."""

from __future__ import annotations

import random

from specdraft.data.prompt_families.words import bank, lines, shuffled

PHRASINGS = [
    "List five {topic}.",
    "Name three {topic}.",
    "Give me four {topic}.",
    "What are five {topic}?",
    "Write a numbered list of five {topic}.",
    "Can you list six {topic}?",
    "Please name four {topic}, one per line.",
    "Name three {topic} and describe each in a few words.",
    "I need a short list of {topic}. Give me five.",
    "Make a bulleted list of four {topic}.",
    "Tell me five {topic}.",
    "Which {topic} do you know? Name four.",
    "Give me a list of seven {topic}.",
    "Please list three {topic} with one sentence about each.",
    "Write down four {topic}, separated by commas.",
]
TOPICS = bank("""
    fruits, vegetables, farm animals, wild animals, sea animals, birds, insects, reptiles, dog breeds, flowers, trees,
    herbs, spices, types of cheese, types of bread, types of pasta, breakfast foods, desserts, soups, salads,
    hot drinks, cold drinks, kinds of nuts, kinds of berries, pizza toppings, ice cream flavors, kitchen tools,
    garden tools, pieces of furniture, rooms in a house, items in a bathroom, things in a backpack, school subjects,
    school supplies, musical instruments, string instruments, wind instruments, genres of music, genres of books,
    genres of movies, dance styles, ball games, winter sports, water sports, board games, card games, outdoor games,
    hobbies, crafts, countries in Europe, countries in Asia, countries in Africa, countries in South America,
    cities in the United States, cities in Germany, cities in Italy, cities in Japan, rivers, mountains, deserts, seas,
    islands, lakes, planets, metals, gemstones, chemical elements, gases, colors, shapes, units of length,
    units of time, currencies, languages, programming languages, operating systems, file formats, computer parts,
    web browsers, types of computer memory, data structures, sorting algorithms, uses of a smartphone, professions,
    jobs in a hospital, jobs in a school, jobs in a restaurant, types of vehicles, parts of a car, parts of a bicycle,
    parts of a plant, parts of the human body, organs of the human body, bones, emotions, types of weather, holidays,
    famous scientists, famous painters, famous composers, famous writers, famous inventors, ancient civilizations,
    famous landmarks, famous bridges, types of buildings, building materials, fabrics, pieces of clothing,
    types of shoes, accessories to wear, healthy snacks, foods rich in protein, foods rich in fiber,
    sources of vitamin C, sources of renewable energy, ways to save water, ways to save energy, ways to save money,
    ways to reduce stress, ways to sleep better, ways to learn faster, ways to stay healthy, ways to make new friends,
    ways to stay organized, ways to recycle paper, tips for public speaking, tips for a job interview,
    tips for writing, tips for studying, tips for camping, tips for taking photos, tips for growing tomatoes,
    tips for cooking rice, rules of good behavior, benefits of exercise, benefits of reading,
    benefits of drinking water, benefits of walking, benefits of teamwork, uses of a computer, uses of salt,
    uses of paper, uses of wood, uses of vinegar, causes of noise, causes of pollution, effects of climate change,
    good habits, indoor activities, activities for a rainy day, activities for children, ideas for a birthday party,
    ideas for a picnic, ideas for a small gift, ideas for dinner, names for a cat, names for a dog, names for a bakery,
    words that rhyme with cat, words that rhyme with day, adjectives that describe a person, verbs of movement,
    prepositions, synonyms of happy, synonyms of big, things found at the beach, things found in an office,
    things that are round, things that fly, things made of glass, animals that live in the desert,
    animals that live in the forest, animals with stripes, questions to ask a new friend, qualities of a good leader,
    qualities of a good teacher, parts of a letter
""")
HELDOUT = lines("""
    List five animals that sleep during the day.
    Name three things found in a toolbox.
    Give me four jobs that involve long journeys.
    What are five ways to keep a room cool?
    Write a numbered list of five steps of a science project.
    Can you list six rhymes for the word light?
    Please name four tips for riding a bike safely, one per line.
    Name three cloud types and describe each in a few words.
    I need a short list of foods eaten with chopsticks. Give me five.
    Make a bulleted list of four things to do with an empty jar.
    List five signs of a good neighbor.
    Name three machines that need electricity.
    """)


def train() -> list[str]:
    """Every topic in every phrasing, about 2,600 prompts."""
    prompts = [phrasing.format(topic=topic) for phrasing in PHRASINGS for topic in TOPICS]
    return shuffled(random.Random("lists/train"), prompts)


def heldout() -> list[str]:
    """12 prompts about topics that training never names."""
    return list(HELDOUT)
