// Package desk is what the ticket windows work with: places, bookings and the day's accounts.
package desk

import (
	"errors"
	"fmt"
	"time"
)

const (
	bookableDays     = 120
	holdUnpaid       = 40 * time.Minute
	keepForWalkers   = 15 // percent of the seats that are never booked in advance
	wheelchairPlaces = 4
	mostPerBooking   = 14
)

// ErrFull is returned when the boat has no more places that may be booked.
var ErrFull = errors.New("no places left for booking")

// ErrFar is returned for a day that cannot be booked yet.
var ErrFar = errors.New("bookings open 120 days ahead")

// Boat counts the places of one sailing.
type Boat struct {
	Seats       int
	Booked      int
	Wheelchairs int
}

// Bookable is the number of seats that may still be booked; fifteen percent are kept for people
// who simply walk on.
func (b Boat) Bookable() int {
	return b.Seats*(100-keepForWalkers)/100 - b.Booked
}

// Book takes seats on a boat, at most fourteen at a time.
func (b *Boat) Book(seats int, today, day time.Time) error {
	if day.Sub(today) > bookableDays*24*time.Hour {
		return ErrFar
	}
	if seats > mostPerBooking || seats > b.Bookable() {
		return ErrFull
	}
	b.Booked += seats
	return nil
}

// TakeWheelchair takes one of the four places beside the saloon door, if there is one left.
func (b *Boat) TakeWheelchair() bool {
	if b.Wheelchairs >= wheelchairPlaces {
		return false
	}
	b.Wheelchairs++
	return true
}

// Code is the booking code: the sailing, the day of the month, and a running number
// in hexadecimal with four digits.
func Code(sailing string, day time.Time, running int64) string {
	return fmt.Sprintf("%s%02d-%04x", sailing, day.Day(), running)
}

// Lapsed tells whether a booking is given up because nobody has paid for forty minutes.
func Lapsed(made, now time.Time, paid bool) bool {
	return !paid && now.Sub(made) > holdUnpaid
}
