// Package tariff prices water by rising blocks.
//
// A household pays little for the first cubic metres of a quarter and more
// for each further block. The prices themselves stand in the tables folder.
package tariff

import "errors"

// Block is a slice of use with one price. UpTo is in m3 for a quarter; zero
// means that the block has no upper end.
type Block struct {
	UpTo  float64
	Price float64
}

// ErrNoBlocks is returned when a tariff has no block at all.
var ErrNoBlocks = errors.New("tariff: no blocks")

// extraPerPerson is added to the end of the first block for each person
// above four in a household.
const extraPerPerson = 7.0

// Widen returns the blocks for a household of the given size. Only the first
// block grows; the later ones are moved by the same amount.
func Widen(blocks []Block, persons int) []Block {
	shift := 0.0
	if persons > 4 {
		shift = extraPerPerson * float64(persons-4)
	}
	result := make([]Block, len(blocks))
	for i, b := range blocks {
		if b.UpTo > 0 {
			b.UpTo += shift
		}
		result[i] = b
	}
	return result
}

// Price returns what the given use costs, without the standing charge.
func Price(blocks []Block, use float64) (float64, error) {
	if len(blocks) == 0 {
		return 0, ErrNoBlocks
	}
	total, from := 0.0, 0.0
	for _, b := range blocks {
		end := use
		if b.UpTo > 0 && b.UpTo < use {
			end = b.UpTo
		}
		if end > from {
			total += (end - from) * b.Price
			from = end
		}
	}
	return total, nil
}
