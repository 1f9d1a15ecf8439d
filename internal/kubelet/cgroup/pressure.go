package cgroup

import (
	"os"
	"strconv"
	"strings"
)

// Pressures are the pressure stall information of a cgroup: how long its processes have waited for a resource. They are nil on hosts without it
// and with cgroup version 1.
type Pressures struct {
	CPU, Memory, IO *Pressure
}

// Pressure is the pressure stall information of one resource: the time in which some, and in which all processes had to wait.
type Pressure struct {
	Some, Full Stall
}

// Stall is a time of waiting: in total, in microseconds, and in percent of the last 10, 60 and 300 seconds.
type Stall struct {
	Total                uint64
	Avg10, Avg60, Avg300 float64
}

// readPressure reads a file of pressure stall information; nil if there is none.
func readPressure(path string) *Pressure {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil // the kernel does not have it, or it is disabled
	}
	var p Pressure
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "some":
			p.Some = parseStall(fields[1:])
		case "full":
			p.Full = parseStall(fields[1:])
		}
	}
	return &p
}

// parseStall parses "avg10=0.12 avg60=0.34 avg300=0.56 total=789".
func parseStall(fields []string) (s Stall) {
	for _, field := range fields {
		name, value, _ := strings.Cut(field, "=")
		if name == "total" {
			s.Total, _ = strconv.ParseUint(value, 10, 64) // zero if the kernel changes its format
			continue
		}
		average, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "avg10":
			s.Avg10 = average
		case "avg60":
			s.Avg60 = average
		case "avg300":
			s.Avg300 = average
		}
	}
	return s
}
