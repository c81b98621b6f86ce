package desk

import (
	"fmt"
	"sort"
)

// Drawer is the money of one window at the end of a shift, in ore.
type Drawer struct {
	Window   string
	Seller   string
	Float    int // what was in the drawer in the morning
	Sold     int
	PaidBack int
	Counted  int
}

const (
	floatOre       = 80000 // every drawer starts with eight hundred crowns
	toleranceOre   = 500
	seriousOre     = 10000
	safeFromOre    = 400000 // a fuller drawer is emptied into the safe at once
	commissionPart = 250    // one part in 250 of the sales goes to the crews' feast
)

// Difference is what the drawer has too much (or, negative, too little).
func (d Drawer) Difference() int {
	return d.Counted - (d.Float + d.Sold - d.PaidBack)
}

// Verdict says what to do about a difference: up to five crowns nothing, up to a hundred the
// seller writes a line, above that two people count again and Tilde signs.
func (d Drawer) Verdict() string {
	diff := d.Difference()
	if diff < 0 {
		diff = -diff
	}
	switch {
	case diff <= toleranceOre:
		return "fine"
	case diff <= seriousOre:
		return "write a line"
	}
	return "count again"
}

// ToSafe tells whether the drawer must be emptied before the end of the shift.
func ToSafe(inDrawer int) bool {
	return inDrawer >= safeFromOre
}

// FeastShare is what the crews' feast gets from the sales of a day.
func FeastShare(sold int) int {
	return sold / commissionPart
}

// Sheet returns the lines of the evening sheet, the window with the largest sales first; a drawer
// that did not begin with the usual float is marked with a cross.
func Sheet(drawers []Drawer) []string {
	sort.Slice(drawers, func(i, j int) bool { return drawers[i].Sold > drawers[j].Sold })
	var lines []string
	for _, d := range drawers {
		mark := " "
		if d.Float != floatOre {
			mark = "+"
		}
		lines = append(lines, fmt.Sprintf("%s%-8s %-10s %8d %s", mark, d.Window, d.Seller, d.Sold, d.Verdict()))
	}
	return lines
}
