"""Requests for short Python code: functions, small classes, loops and containers."""

from __future__ import annotations

import random

from specdraft.data.prompt_families.words import bank, lines, shuffled, with_article

FUNCTION_TASKS = [
    "Write a Python function that {does}.",
    "Write a Python function `{sig}` that {does}.",
    "Implement `{sig}` in Python. It {does}.",
    "Show me short Python code for a function that {does}.",
    "Complete this Python function, which {does}:\n\ndef {sig}:",
    "Write a Python function called {name} that {does}, and show one example call.",
    "How do I write a Python function that {does}?",
    "Give me a Python function that {does}, with a short docstring.",
    "Define a function `{name}` in Python. It {does}. Explain the code briefly.",
    "I need a small Python program with a function `{sig}` that {does}.",
]
# signature | what it does
FUNCTIONS = lines("""
    add(a, b)|returns the sum of two numbers / multiply(a, b)|returns the product of two numbers
    average(numbers)|returns the average of a list of numbers
    largest(numbers)|returns the largest number in a list / smallest(numbers)|returns the smallest number in a list
    total(numbers)|adds up all numbers in a list / is_even(n)|checks if a number is even
    is_odd(n)|checks if a number is odd / is_prime(n)|checks if a number is prime
    is_leap_year(year)|checks if a year is a leap year / is_positive(n)|checks if a number is greater than zero
    factorial(n)|computes the factorial of a number / fibonacci(n)|returns the first n Fibonacci numbers
    gcd(a, b)|finds the greatest common divisor of two numbers / power(base, exponent)|raises a number to a power
    square(n)|returns the square of a number / cube(n)|returns the cube of a number
    absolute(n)|returns the absolute value of a number / reverse(text)|reverses a string
    is_palindrome(text)|checks if a string is a palindrome / count_vowels(text)|counts the vowels in a string
    count_words(text)|counts the words in a sentence
    count_letter(text, letter)|counts how often a letter occurs in a string
    to_upper(text)|converts a string to upper case / to_lower(text)|converts a string to lower case
    capitalize_words(text)|capitalizes the first letter of every word
    remove_spaces(text)|removes all spaces from a string / remove_vowels(text)|removes all vowels from a string
    first_letter(text)|returns the first letter of a string / last_letter(text)|returns the last letter of a string
    longest_word(text)|finds the longest word in a sentence
    repeat(text, times)|repeats a string a given number of times
    join_words(words)|joins a list of words with commas / split_words(text)|splits a sentence into a list of words
    starts_with(text, prefix)|checks if a string starts with a given prefix
    are_anagrams(a, b)|checks if two words are anagrams
    sort_numbers(numbers)|sorts a list of numbers in ascending order
    sort_descending(numbers)|sorts a list of numbers from high to low
    sort_by_length(words)|sorts a list of words by their length
    remove_duplicates(items)|removes duplicates from a list / reverse_list(items)|returns a list in reverse order
    first_item(items)|returns the first element of a list / last_item(items)|returns the last element of a list
    count_items(items)|returns the number of elements in a list
    even_numbers(numbers)|keeps only the even numbers of a list
    positive_numbers(numbers)|keeps only the positive numbers of a list
    long_words(words)|keeps only the words with more than five letters
    double_all(numbers)|doubles every number in a list / square_all(numbers)|squares every number in a list
    merge(a, b)|merges two lists into one / common(a, b)|returns the elements that two lists share
    contains(items, value)|checks if a value is in a list
    find_index(items, value)|returns the position of a value in a list / flatten(rows)|flattens a list of lists
    swap(a, b)|swaps two values / count_frequency(items)|counts how often each element occurs in a list
    invert(mapping)|swaps the keys and values of a dictionary
    get_keys(mapping)|returns the keys of a dictionary as a list / merge_dicts(a, b)|merges two dictionaries
    celsius_to_fahrenheit(c)|converts a temperature from Celsius to Fahrenheit
    fahrenheit_to_celsius(f)|converts a temperature from Fahrenheit to Celsius
    km_to_miles(km)|converts kilometers to miles / kg_to_pounds(kg)|converts kilograms to pounds
    hours_to_minutes(hours)|converts hours to minutes / minutes_to_seconds(minutes)|converts minutes to seconds
    cm_to_inches(cm)|converts centimeters to inches / rectangle_area(width, height)|computes the area of a rectangle
    circle_area(radius)|computes the area of a circle / triangle_area(base, height)|computes the area of a triangle
    square_perimeter(side)|computes the perimeter of a square / cube_volume(side)|computes the volume of a cube
    distance(x1, y1, x2, y2)|computes the distance between two points
    discount(price, percent)|reduces a price by a percentage / add_tax(price, rate)|adds sales tax to a price
    greet(name)|prints a greeting with a name / print_list(items)|prints every element of a list on its own line
    countdown(n)|prints the numbers from n down to one / times_table(n)|prints the multiplication table of a number
    roll_dice()|returns a random number between 1 and 6 / pick_random(items)|returns a random element of a list
    read_file(path)|reads a text file and returns its content
    write_file(path, text)|writes a string to a text file / count_lines(path)|counts the lines of a text file
    to_binary(n)|converts a number to a binary string / digits_sum(n)|returns the sum of the digits of a number
    max_of_three(a, b, c)|returns the largest of three numbers
    divide(a, b)|divides two numbers and handles division by zero / grade(score)|turns a score into a letter grade
    age(birth_year, year)|computes an age from a birth year
    full_name(first, last)|joins a first name and a last name
    linear_search(items, value)|searches a list one element at a time
    bubble_sort(numbers)|sorts a list with bubble sort / is_sorted(numbers)|checks if a list is sorted
    fizzbuzz(n)|prints FizzBuzz for the numbers from 1 to n
    """)
# class: attributes and a method
CLASSES = [entry.split("|") for entry in lines("""
    Dog|name, age|bark / Cat|name, color|meow / Car|brand, speed|drive / Book|title, author|describe
    Student|name, grade|study / Teacher|name, subject|teach / Circle|radius|area / Rectangle|width, height|area
    BankAccount|owner, balance|deposit / Person|name, age|introduce / Player|name, score|add_points
    Point|x, y|move / Phone|model, battery|charge / Lamp|room, is_on|switch / Counter|value|increment
    House|address, rooms|describe / Robot|name, energy|walk / Recipe|title, minutes|show / Song|title, artist|play
    Movie|title, year|describe / Ticket|seat, price|show / Garden|plants|water / Bicycle|brand, gears|ride
    Product|name, price|discount
    """)]  # fmt: skip
CLASS_TASKS = [
    "Write a Python class {name} with the attributes {attributes} and a method {method}.",
    "Create a simple Python class called {name}. It stores {attributes} and has a method {method}().",
    "Show me how to define {a_name} class in Python with {attributes} and a {method} method.",
]
LOOP_TASKS = [
    "Write a Python loop that prints the numbers from {x} to {y}.",
    "Write Python code that prints every even number between {x} and {y}.",
    "Use a while loop in Python to count from {x} to {y}.",
    "Write a Python list comprehension with the squares of the numbers from {x} to {y}.",
    "Write Python code that adds all numbers from {x} to {y} and prints the result.",
]
CONTAINER_TASKS = [
    "Create a Python list of five {things} and print each one.",
    "Write a Python dictionary that maps three {things} to numbers.",
    "Write Python code that sorts a list of {things} alphabetically.",
    "Write Python code that picks a random item from a list of {things}.",
    "Write Python code that asks the user for two {things} and prints them.",
]
THINGS = bank("""
    colors, fruits, cities, animals, names, countries, vegetables, sports, planets, flowers, drinks, foods, books,
    movies, songs, months, weekdays, tools, toys, birds, trees, school subjects, hobbies, languages
""")
HELDOUT = lines("""
    Write a Python function that rotates a list by one position to the right.
    Write a Python function `median(values)` that finds the middle value of a sorted list.
    Implement `caesar(message, shift)` in Python. It shifts each letter along the alphabet.
    Show me short Python code for a function that zips keys and values into a dictionary.
    Write a Python function called clamp that limits a value to a minimum and a maximum, and show one example call.
    Write a Python class Thermostat with the attributes target, current and a method heat_up.
    Write a Python function that returns the second highest score of a game.
    Use a for loop in Python to print a triangle of stars with four rows.
    Write Python code that measures how long a function call takes.
    Write a Python function that checks if brackets in a formula are balanced.
    """)


def train() -> list[str]:
    """About 1,250 prompts: functions, classes, loops and containers."""
    rng = random.Random("code/train")
    prompts = []
    for entry in FUNCTIONS:
        sig, does = entry.split("|")
        prompts += [task.format(sig=sig, name=sig.split("(")[0], does=does) for task in FUNCTION_TASKS]
    for name, attributes, method in CLASSES:
        # "a BankAccount", "an Owner": class names follow the same rule as nouns
        a_name = with_article(name.lower()).split()[0] + " " + name
        attributes = attributes.replace(", ", " and ")
        prompts += [t.format(name=name, a_name=a_name, attributes=attributes, method=method) for t in CLASS_TASKS]
    for row, task in enumerate(LOOP_TASKS):
        prompts += [task.format(x=x, y=y) for x in (1, 2 + row, 8, 10) for y in (15 + row, 20 + 5 * row, 50)]
    prompts += [task.format(things=things) for task in CONTAINER_TASKS for things in THINGS]
    return shuffled(rng, prompts)


def heldout() -> list[str]:
    """10 prompts about functions, classes and loops that training never names."""
    return list(HELDOUT)
