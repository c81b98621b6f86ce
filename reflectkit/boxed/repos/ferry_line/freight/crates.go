package freight

// Crate is a piece of freight without wheels, weighed on the harbour scale.
type Crate struct {
	Kilos     int
	Class     string // see classes
	Perishing bool
	DayBefore bool // brought to the shed on the day before
}

// classes gives the price in ore per ten kilograms.
var classes = map[string]int{
	"food":      180,
	"furniture": 320,
	"building":  210,
	"post":      95,
	"beasts":    540,
	"fireworks": 1900,
}

const (
	leastOre        = 2500
	shedNightOre    = 600
	islandersShare  = 60 // percent that islanders pay for food and building materials
	fireworksCrates = 3  // that many on one boat, and never together with beasts
	craneFromKilos  = 350
	craneOre        = 7800
)

// CratePrice returns the freight of one crate. Anything above 350 kilograms needs the crane, which
// costs seventy-eight crowns more; a night in the shed costs six, but not for food that perishes.
func CratePrice(c Crate, islander bool) int {
	price := (c.Kilos + 9) / 10 * classes[c.Class]
	if islander && (c.Class == "food" || c.Class == "building") {
		price = price * islandersShare / 100
	}
	if price < leastOre {
		price = leastOre
	}
	if c.Kilos > craneFromKilos {
		price += craneOre
	}
	if c.DayBefore && !c.Perishing {
		price += shedNightOre
	}
	return price
}

// MayLoad tells whether a list of crates may travel on one boat.
func MayLoad(crates []Crate) bool {
	fireworks, beasts := 0, 0
	for _, c := range crates {
		switch c.Class {
		case "fireworks":
			fireworks++
		case "beasts":
			beasts++
		}
	}
	return fireworks <= fireworksCrates && (fireworks == 0 || beasts == 0)
}

// First says who is unloaded before the rest: beasts and whatever perishes.
func First(c Crate) bool {
	return c.Class == "beasts" || c.Perishing
}
