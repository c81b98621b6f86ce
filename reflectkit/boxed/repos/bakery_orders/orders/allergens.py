"""Declare allergens per product and check special wishes against them."""

# The codes are those on the counter cards.
CODES = {
    "A": "wheat gluten",
    "B": "rye gluten",
    "C": "milk",
    "D": "egg",
    "E": "hazelnut",
    "F": "sesame",
    "G": "soy lecithin",
}

PRODUCT_CODES = {
    "levain_loaf": "A",
    "dark_rye": "AB",
    "croissant": "ACD",
    "cardamom_bun": "ACD",
    "sesame_roll": "AF",
    "poppy_roll": "A",
    "nut_crescent": "ACDE",
    "celebration_cake": "ACDEG",
}

# Traces: things that share a table or a tray with the allergen.
SHARED_TABLE = {"levain_loaf": "F", "poppy_roll": "F", "croissant": "E"}


def contains(product):
    """Readable list of declared allergens of a product, in card order."""
    return [CODES[code] for code in sorted(PRODUCT_CODES[product])]


def traces(product):
    """Allergens that a product may pick up from the bench; never promised away."""
    return [CODES[code] for code in SHARED_TABLE.get(product, "")]


def is_safe(product, avoid, strict=True):
    """Whether a customer who avoids the codes in `avoid` may have the product.

    A strict check counts traces as if they were ingredients. The mild check is
    used only when the customer has signed the green form.
    """
    codes = set(PRODUCT_CODES[product])
    if strict:
        codes |= set(SHARED_TABLE.get(product, ""))
    return not codes & set(avoid)


def card_text(product):
    """Text of the counter card; a plus sign marks traces."""
    plain = ", ".join(contains(product))
    maybe = "".join(f" +{name}" for name in traces(product))
    return f"{product.replace('_', ' ')}: {plain}{maybe}"
