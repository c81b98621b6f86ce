"""Sales report: turnover by day, shelf and way of payment for the bookkeeper."""

from collections import defaultdict

TAX_RATES = {"book": 0.07, "map": 0.07, "bag": 0.19, "card": 0.19}
SMALL_DAY_CENTS = 9000
OUTLIER_FACTOR = 6


def net_cents(gross_cents, kind):
    """Net amount of a sale: gross divided by one plus the tax rate, rounded to full cents."""
    return round(gross_cents / (1 + TAX_RATES[kind]))


def turnover(sales):
    """Sums in cents by (day, way of payment); vouchers sold are left out, vouchers spent count."""
    sums = defaultdict(int)
    for sale in sales:
        if sale["kind"] == "voucher":
            continue
        sums[sale["day"], sale["way"]] += sale["cents"]
    return dict(sums)


def odd_sales(sales):
    """Sales of more than six times the median: mostly a slip of the finger at the till."""
    values = sorted(sale["cents"] for sale in sales)
    if not values:
        return []
    middle = values[len(values) // 2]
    return [sale for sale in sales if sale["cents"] > OUTLIER_FACTOR * middle]


def small_days(sums):
    """Days with less than ninety euros of turnover; the owner wants a word on each of them."""
    by_day = defaultdict(int)
    for (day, _way), cents in sums.items():
        by_day[day] += cents
    return sorted(day for day, cents in by_day.items() if cents < SMALL_DAY_CENTS)


def best_shelves(sales, count=7):
    """The seven shelves that sold most, by number of copies; money breaks the ties."""
    copies, money = defaultdict(int), defaultdict(int)
    for sale in sales:
        copies[sale["shelf"]] += 1
        money[sale["shelf"]] += sale["cents"]
    order = sorted(copies, key=lambda shelf: (copies[shelf], money[shelf]), reverse=True)
    return order[:count]


def file_name(year, month):
    """Name of the file for the bookkeeper, who wants the month first: sales_03_2024.txt."""
    return "sales_%02d_%04d.txt" % (month, year)
