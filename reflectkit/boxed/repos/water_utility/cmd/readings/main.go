// Command readings loads meter readings from a text file and checks them.
//
// Each line has a meter number, a day and a counter value in litres. Lines
// that fail a check are written to standard error and counted; the exit code
// is 4 when more than one line in fifty is bad.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	badShareLimit = 0.02
	exitTooBad    = 4
	meterDigits   = 6
)

// reading is one line of the file.
type reading struct {
	meter  string
	day    string
	litres int64
}

// parseLine splits a line at semicolons and checks the form of its parts.
func parseLine(line string) (reading, error) {
	parts := strings.Split(strings.TrimSpace(line), ";")
	if len(parts) != 3 {
		return reading{}, fmt.Errorf("want 3 parts, have %d", len(parts))
	}
	if len(parts[0]) != meterDigits {
		return reading{}, fmt.Errorf("meter number %q has not six digits", parts[0])
	}
	litres, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || litres < 0 {
		return reading{}, fmt.Errorf("bad counter %q", parts[2])
	}
	return reading{parts[0], parts[1], litres}, nil
}

func main() {
	scanner := bufio.NewScanner(os.Stdin)
	good, bad := 0, 0
	for scanner.Scan() {
		entry, err := parseLine(scanner.Text())
		if err != nil {
			bad++
			fmt.Fprintln(os.Stderr, "skipped:", err)
			continue
		}
		good++
		fmt.Println(entry.meter, entry.day, entry.litres)
	}
	if total := good + bad; total > 0 && float64(bad)/float64(total) > badShareLimit {
		os.Exit(exitTooBad)
	}
}
