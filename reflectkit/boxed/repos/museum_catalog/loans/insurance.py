"""Insurance value and premium of a loan, nail to nail."""

BASE_RATE_PER_MILLE = 1.9
TRANSPORT_RATE = {"own van": 0.6, "art carrier": 0.35, "post": None, "by hand": 0.8}
ABROAD_FACTOR = 1.7
GLASS_SURCHARGE = 1.25
DEDUCTIBLE = 150
VALUE_OF_CLASS = {"a": 48000, "b": 9000, "c": 1600, "d": 200}
POLICY_CEILING = 175000
MIN_PREMIUM = 22.0


def insured_value(value_class, appraised=None):
    """Appraised value if there is one, otherwise the flat value of the class."""
    return VALUE_OF_CLASS[value_class] if appraised is None else appraised


def premium(value, months, transport, abroad=False, fragile=False):
    """Premium in florins.

    1.9 per mille for each quarter begun, plus the transport rate once per way
    (two ways). Abroad the whole is multiplied by 1.7, glass and faience by
    1.25. The post is never insured and raises an error.
    """
    rate = TRANSPORT_RATE[transport]
    if rate is None:
        raise ValueError("objects are never sent by post")
    quarters = -(-months // 3)
    per_mille = BASE_RATE_PER_MILLE * quarters + 2 * rate
    if abroad:
        per_mille *= ABROAD_FACTOR
    if fragile:
        per_mille *= GLASS_SURCHARGE
    return max(MIN_PREMIUM, round(value * per_mille / 1000, 2))


def needs_state_cover(values):
    """Above the ceiling of our policy, cover by the province has to be asked."""
    return sum(values) > POLICY_CEILING


def payout(value, loss_share):
    """What the insurer pays for a damage; the deductible is ours."""
    return max(0.0, value * loss_share - DEDUCTIBLE)
