"""Word problems: sentence templates filled with names, things and numbers that make whole, positive answers."""

from __future__ import annotations

import random

from specdraft.data.prompt_families.words import bank, draw_distinct, lines, pick, plural, shuffled, with_article

SHE = bank("""
    Maya, Anna, Sofia, Lena, Priya, Grace, Olivia, Nora, Emma, Zoe, Lucy, Hannah, Amara, Ruth, Clara, Ella, Mei, Julia,
    Sara, Fatima, Ivy, Alice, Carmen, Diana, Naomi, Rosa, Tara, Wendy, Yuki, Leila
""")
HE = bank("""
    Tom, Ben, Omar, Lucas, Daniel, Leo, Ravi, Sam, Noah, Ethan, Jack, Peter, Carlos, Felix, Hugo, Ivan, Kenji, Liam,
    Mateo, Oscar, Paul, Simon, Victor, Adam, David, Henry, Jonas, Marco, Tariq, Will
""")
ITEMS = bank("""
    apple, orange, pear, lemon, walnut, marble, sticker, stamp, coin, button, bead, seashell, pebble, postcard, pencil,
    crayon, eraser, notebook, marker, paper clip, baseball card, toy car, comic book, balloon, puzzle piece, ribbon,
    feather, acorn, plum, peach, banana, mango, candle, key ring, badge, magnet, rubber band, token, ticket, photo,
    bottle cap, paper crane, building block, playing card, gold star, bracelet, fig, carrot, lollipop
""")
SNACKS = bank("""
    cookie, muffin, brownie, cupcake, bagel, pretzel, donut, scone, bread roll, tart, pie, biscuit, cinnamon roll,
    lemon cake, apple turnover, cheese stick
""")
GOODS = bank("""
    book, shirt, lamp, mug, plate, scarf, hat, towel, toy train, plant, backpack, belt, board game, umbrella, pillow,
    water bottle, calendar, clock, basketball, paint set, pair of socks, picture frame, flashlight, kite, wallet
""")
BOXES = bank("box, basket, bag, crate, jar, tray, tin, packet")
SHOPS = bank("shop, market, store, fair, mall, kiosk, supermarket, garage sale")
HELPERS = bank("friends, cousins, classmates, neighbors, teammates, children, students, coworkers")

# held back from training
RESERVED_SHE = bank("Beatrix, Ingrid, Keiko, Thandi, Margot")
RESERVED_HE = bank("Alistair, Dmitri, Kofi, Rashid, Thaddeus")
RESERVED_ITEMS = bank("pinecone, dinosaur figure, snow globe, tennis ball, tulip bulb, chestnut")
RESERVED_SNACKS = bank("croissant, macaron, strudel")
RESERVED_GOODS = bank("chess set, raincoat, teapot, skateboard")

# {a} {b}: names; {he} {his}: of {a}; {x} {y} {z}: numbers; {item}/{items} and so on: singular and plural
TEMPLATES: dict[str, list[str]] = {
    "add": lines("""
        {a} has {x} {items}. {b} gives {a} {y} more {items}. How many {items} does {a} have now?
        {a} found {x} {items} on Monday and {y} {items} on Tuesday. How many {items} did {he} find in total?
        There are {x} {items} in one {box} and {y} {items} in another. How many {items} are there altogether?
        {a} baked {x} {snacks} in the morning and {y} {snacks} in the afternoon. How many {snacks} did {he} bake?
        {a} has {x} {items} and {b} has {y} {items}. How many {items} do they have together?
        After buying {y} new {items}, {a} counts {his} collection. {He} had {x} {items} before. How many are there now?
        A class of {x} students was joined by {y} students from another class. How many students are there in all?
        {a} read {x} pages of a book on Saturday and {y} pages on Sunday. How many pages did {he} read?
        What is {x} plus {y}? Show the steps.
        """),
    "subtract": lines("""
        {a} had {x} {items} and gave {y} of them to {b}. How many {items} does {a} have left?
        A {box} holds {x} {items}. {a} takes out {y}. How many {items} remain in the {box}?
        {a} made {x} {snacks} for a party. The guests ate {y} of them. How many {snacks} were left over?
        {a} has {x} {items}, and {b} has {y} {items}. How many more {items} does {a} have than {b}?
        {a} is saving for {an_good} that costs ${x}. So far {he} has ${y}. How much more money does {he} need?
        A bus has {x} passengers. At the next stop, {y} get off. How many passengers are still on the bus?
        {a} lost {y} of {his} {x} {items} on the way to school. How many {items} are left?
        A book has {x} pages and {a} has read {y} of them. How many pages are left to read?
        What is {x} minus {y}? Show the steps.
        """),
    "multiply": lines("""
        {a} has {x} {boxes}. Each {box} contains {y} {items}. How many {items} are there in total?
        {a} buys {x} {goods} at the {shop}. Each one costs ${y}. How much does {he} pay?
        There are {x} tables at a party, and each table has {y} {snacks}. How many {snacks} are there?
        {a} walks {y} miles every day. How many miles does {he} walk in {x} days?
        A garden has {x} rows with {y} plants in each row. How many plants are in the garden?
        {a} puts {y} {items} on every shelf. How many {items} fit on {x} shelves?
        If one {good} costs ${y}, what is the price of {x} {goods}?
        {a} earns ${y} per hour. How much does {he} earn for working {x} hours?
        What is {x} times {y}? Show the steps.
        """),
    "divide": lines("""
        {a} shares {x} {items} equally among {y} {helpers}. How many {items} does each one get?
        {a} wants to pack {x} {snacks} into {boxes} of {y}. How many {boxes} does {he} need?
        A rope is {x} meters long. {a} cuts it into {y} equal pieces. How long is each piece?
        {a} paid ${x} for {y} {goods} that all cost the same. What was the price of one {good}?
        {x} students form teams of {y}. How many teams are there?
        {a} reads {y} pages a day. How many days will {he} need to finish a book of {x} pages?
        What is {x} divided by {y}? Show the steps.
        """),
    "change": lines("""
        {a} had {x} {items}. {He} bought {y} more and then gave {z} to {b}. How many {items} does {a} have now?
        A {shop} had {x} {goods} in stock. It received {y} more and sold {z}. How many {goods} are in stock now?
        {a} picked {x} {items} and {b} picked {y}. They used {z} of them. How many {items} are left?
        A train starts with {x} people. {y} people get on and {z} people get off. How many people are on the train?
        {a} had ${x}, earned ${y} by washing cars and spent ${z} on {an_good}. How much money does {he} have now?
        """),
    "multiply_add": lines("""
        {a} buys {x} {boxes} of {y} {items} and finds {z} more {items} at home. How many {items} does {he} have?
        {a} bought {x} {goods} for ${y} each and a snack for ${z}. How much did {he} spend in total?
        {a} bakes {x} trays of {y} {snacks}, and {b} brings {z} {snacks}. How many {snacks} are there altogether?
        A taxi charges ${z} to start and ${y} per mile. How much does a ride of {x} miles cost?
        """),
    "multiply_subtract": lines("""
        {a} has {x} {boxes} with {y} {items} each. {He} gives away {z} {items}. How many {items} are left?
        {a} earns ${y} a day for {x} days and then spends ${z}. How much money is left?
        {a} baked {x} trays of {y} {snacks} and {z} of the {snacks} were burnt. How many good {snacks} are there?
        """),
    "rate": lines("""
        A car drives at {x} miles per hour for {y} hours. How far does it travel?
        {a} rides a train that moves at {x} kilometers per hour. How far does {he} get in {y} hours?
        A machine packs {x} {boxes} per hour. How many {boxes} does it pack in {y} hours?
        A pump fills {x} liters of water per minute. How many liters does it fill in {y} minutes?
        """),
    "percent": lines("""
        {an_good_cap} costs ${x}. The {shop} offers a {y}% discount. How much money does {a} save?
        {y}% of the {x} {items} in a {box} are damaged. How many {items} are damaged?
        What is {y}% of {x}?
        """),
    "shape": lines("""
        A rectangle is {x} cm long and {y} cm wide. What is its area?
        {a} builds a fence around a garden that is {x} meters long and {y} meters wide. How long is the fence?
        A floor is {x} feet by {y} feet. How many square feet of carpet does {a} need to cover it?
        """),
}

HELDOUT_SCENARIOS = lines("""
    A farmer collects 18 eggs before breakfast and 27 eggs after lunch. How many eggs were collected that day?
    An elevator carries 9 people on each trip. How many people can it carry in 6 trips?
    The temperature was 31 degrees at noon and dropped by 14 degrees at night. What was the night temperature?
    A recipe for one cake needs 3 cups of flour. How much flour is needed for 8 cakes?
    A library lends out 45 novels, and 19 come back the same week. How many are still out?
    A choir of 56 singers stands in 7 equal rows. How many singers stand in each row?
    A phone battery is at 84%. It loses 6% every hour. What is the charge after 5 hours?
    A cinema sold 120 tickets for the early film and 95 for the late film. How many more were sold for the early film?
    A baker uses 4 bags of sugar each week. How many weeks will 36 bags last?
    Two brothers are 11 and 15 years old. What is the sum of their ages in 3 years?
    """)
HELDOUT_KINDS = bank("add, subtract, multiply, divide, change, multiply_add, multiply_subtract")


def _numbers(kind: str, rng: random.Random) -> dict[str, int]:
    """Numbers whose answer is a positive integer."""

    def between(low: int, high: int) -> int:
        return low + int(rng.random() * (high - low + 1))

    x, y, z = between(3, 60), between(3, 40), between(2, 20)
    if kind == "subtract":
        x = y + between(2, 50)
    elif kind in ("multiply", "multiply_add"):
        x, y = between(2, 9), between(2, 15)
    elif kind == "divide":
        y = between(2, 9)
        x = y * between(2, 12)
    elif kind == "change":
        z = between(2, x + y - 2)
    elif kind == "multiply_subtract":
        x, y = between(2, 9), between(3, 15)
        z = between(2, x * y - 2)
    elif kind == "rate":
        x, y = 5 * between(3, 16), between(2, 9)
    elif kind == "percent":
        x, y = 20 * between(1, 25), pick(rng, (5, 10, 20, 25, 50, 75))
    elif kind == "shape":
        y = between(3, 20)
        x = y + between(1, 20)
    return {"x": x, "y": y, "z": z}


def _fill(kind: str, template: str, rng: random.Random, reserved: bool) -> str:
    she, he = (RESERVED_SHE, RESERVED_HE) if reserved else (SHE, HE)
    female = rng.random() < 0.5
    a, b = (pick(rng, she), pick(rng, he)) if female else (pick(rng, he), pick(rng, she))
    item = pick(rng, RESERVED_ITEMS if reserved else ITEMS)
    snack = pick(rng, RESERVED_SNACKS if reserved else SNACKS)
    good = pick(rng, RESERVED_GOODS if reserved else GOODS)
    box = pick(rng, BOXES)
    an_good = with_article(good)
    goods = good.replace("pair", "pairs") if good.startswith("pair of") else plural(good)
    return template.format(
        a=a,
        b=b,
        he="she" if female else "he",
        He="She" if female else "He",
        his="her" if female else "his",
        item=item,
        items=plural(item),
        snack=snack,
        snacks=plural(snack),
        good=good,
        goods=goods,
        an_good=an_good,
        an_good_cap=an_good.capitalize(),
        box=box,
        boxes=plural(box),
        shop=pick(rng, SHOPS),
        helpers=pick(rng, HELPERS),
        **_numbers(kind, rng),
    )


def train() -> list[str]:
    """6,500 problems; every template gets the same share."""
    rng = random.Random("arithmetic/train")
    pairs = [(kind, template) for kind, templates in TEMPLATES.items() for template in templates]
    return shuffled(rng, draw_distinct(6500, lambda i: _fill(*pairs[i % len(pairs)], rng, reserved=False)))


def heldout() -> list[str]:
    """10 scenarios that no template tells, and 10 known shapes about reserved people and things."""
    rng = random.Random("arithmetic/heldout")
    # every template filled here names a person and a thing; the purely numeric ones would be near copies
    named = {kind: [t for t in TEMPLATES[kind] if "{a}" in t and "s}" in t] for kind in HELDOUT_KINDS}
    shapes = [(kind, templates[0]) for kind, templates in named.items()]
    shapes += [(kind, named[kind][2]) for kind in HELDOUT_KINDS[:3]]
    return HELDOUT_SCENARIOS + [_fill(kind, template, rng, reserved=True) for kind, template in shapes]
