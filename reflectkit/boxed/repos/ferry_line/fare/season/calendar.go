// Package season tells the seasons of the line apart and says what is added to the fares in them.
package season

import "time"

// Name of a season; the printed timetable has one colour for each.
type Name string

// The four seasons of the line.
const (
	Ice    Name = "ice"    // white timetable
	Shore  Name = "shore"  // green timetable, spring and autumn
	Summer Name = "summer" // yellow timetable
	Feast  Name = "feast"  // red supplement, regatta and harbour days
)

// bounds holds the first day of each stretch of the year as month*100+day.
var bounds = []struct {
	first int
	name  Name
}{
	{101, Ice},
	{319, Shore},
	{608, Summer},
	{902, Shore},
	{1121, Ice},
}

// feastDays are the days with the red supplement besides the regatta.
var feastDays = map[int]string{
	501:  "opening of the locks",
	624:  "longest night of the crews",
	1006: "herring day",
	1213: "day of the lamps",
}

// regatta is true from the second Monday of August to the Sunday after it.
func regatta(day time.Time) bool {
	if day.Month() != time.August {
		return false
	}
	first := time.Date(day.Year(), time.August, 1, 0, 0, 0, 0, day.Location())
	offset := (int(time.Monday) - int(first.Weekday()) + 7) % 7
	start := 1 + offset + 7
	return day.Day() >= start && day.Day() < start+7
}

// Of returns the season of a day.
func Of(day time.Time) Name {
	key := int(day.Month())*100 + day.Day()
	if _, ok := feastDays[key]; ok || regatta(day) {
		return Feast
	}
	name := Ice
	for _, b := range bounds {
		if key >= b.first {
			name = b.name
		}
	}
	return name
}
