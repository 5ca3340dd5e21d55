package mps

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// limits are those of clients, as the daemon's default, a server's or a client's own.
type limits struct {
	// percentage of the multiprocessors, 100 for all.
	percentage float64
	// memory is in bytes, by the device's number or UUID as it was said.
	memory map[string]uint64
}

func (l limits) clone() limits {
	return limits{percentage: l.percentage, memory: maps.Clone(l.memory)}
}

// parseLimits reads what the environment says; empty text says nothing.
func parseLimits(memory, percentage string) (limits, error) {
	l := limits{percentage: 100, memory: map[string]uint64{}}
	if percentage != "" {
		p, err := parsePercentage(percentage)
		if err != nil {
			return limits{}, err
		}
		l.percentage = p
	}
	if memory == "" {
		return l, nil
	}
	for _, entry := range strings.Split(memory, ",") {
		device, size, found := strings.Cut(strings.TrimSpace(entry), "=")
		bytes, err := parseMemory(size)
		if !found || device == "" || err != nil {
			return limits{}, fmt.Errorf("%q is not the limit of a device, such as 0=512M", entry)
		}
		l.memory[device] = bytes
	}
	return l, nil
}

func parsePercentage(text string) (float64, error) {
	p, err := strconv.ParseFloat(text, 64)
	if err != nil || !(p > 0 && p <= 100) {
		return 0, fmt.Errorf("%q is not a percentage above 0, to 100", text)
	}
	return p, nil
}

var memorySize = regexp.MustCompile(`^([0-9]+)([GM])B?$`)

// parseMemory reads an integer and its unit, which NVIDIA's documentation allows to
// be G or M alone.
func parseMemory(text string) (uint64, error) {
	parts := memorySize.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("%q is not a size, such as 512M or 2G", text)
	}
	n, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a size that a GPU could have", text)
	}
	return n << map[string]uint{"M": 20, "G": 30}[parts[2]], nil
}

func printPercentage(p float64) string { return strconv.FormatFloat(p, 'f', 1, 64) }

// of is the limit of the device with the number and the UUID.
func (l limits) of(number int, uuid string) (bytes uint64, limited bool) {
	for _, name := range slices.Sorted(maps.Keys(l.memory)) {
		isUUID := len(name) > len("GPU-") && strings.HasPrefix(uuid, name)
		if isUUID || name == strconv.Itoa(number) {
			if !limited || l.memory[name] < bytes {
				bytes, limited = l.memory[name], true
			}
		}
	}
	return bytes, limited
}
