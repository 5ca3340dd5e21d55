package keda

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Keys of a trigger.
const (
	keyMetric         = "metric"
	keyTarget         = "target"
	keyWorkload       = "workload"
	keyDeviceClass    = "deviceClass"
	keyProfile        = "profile"
	keyThreshold      = "threshold"
	keyActivation     = "activationThreshold"
	keyQuery          = "query"
	keyValueType      = "valueType"
	keyNotReady       = "valueWhileNotReady"
	keyLoadingTimeout = "loadingTimeout"
	keyRole           = "role"
	keyWarm           = "warm"
)

// common are the keys of all triggers.
var common = []string{keyMetric, keyTarget, keyProfile, keyThreshold, keyActivation, keyLoadingTimeout, keyRole, keyWarm}

// kedas are keys that KEDA itself reads. It also sends them, each also as NAMEFromEnv.
var kedas = []string{"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey"}

const fromEnv = "FromEnv"

// mostText bounds a trigger's metadata, in bytes: enough for the longest expression that Kubernetes
// accepts, and little enough to cache thousands of triggers.
const mostText = 16 << 10

// fields is a trigger's metadata.
type fields map[string]string

// check refuses keys without effect: misspelled ones, and those of another metric.
func (f fields) check(d *definition) error {
	size := 0
	for _, key := range slices.Sorted(maps.Keys(f)) {
		size += len(key) + len(f[key])
		switch {
		case slices.Contains(kedas, strings.TrimSuffix(key, fromEnv)):
		case !slices.Contains(common, key) && !slices.Contains(d.keys, key):
			return misplaced(key, d)
		case strings.TrimSpace(f[key]) == "":
			return fmt.Errorf("%s is empty: give it a value or leave it out", key)
		}
	}
	if size > mostText {
		return fmt.Errorf("the trigger has %d bytes: shorten it to at most %d", size, mostText)
	}
	return nil
}

func misplaced(key string, d *definition) error {
	var owners []string
	known := slices.Clone(common)
	for i := range definitions {
		known = append(known, definitions[i].keys...)
		if slices.Contains(definitions[i].keys, key) {
			owners = append(owners, definitions[i].name)
		}
	}
	if len(owners) > 0 {
		return fmt.Errorf("%s is for metric %s and does nothing for %s: leave it out", key, strings.Join(owners, " or "), d.name)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	if plain, ok := strings.CutSuffix(key, fromEnv); ok && slices.Contains(known, plain) {
		return fmt.Errorf("key %s is unknown: %s is not read from the environment, write its value into the trigger", key, plain)
	}
	return fmt.Errorf("key %s is unknown: a trigger has %s", quoted(key), strings.Join(known, ", "))
}

// number returns a finite number, and whether the trigger has the key.
func (f fields) number(key string) (float64, bool, error) {
	text, ok := f[key]
	if !ok {
		return 0, false, nil
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, false, fmt.Errorf("%s %s is not a number: write one such as 10 or 0.5", key, quoted(text))
	}
	return n, true, nil
}

// duration returns a duration above zero, or the default if the trigger lacks the key.
func (f fields) duration(key string, otherwise time.Duration) (time.Duration, error) {
	text, ok := f[key]
	if !ok {
		return otherwise, nil
	}
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s %s is not a duration above zero: write one such as 90s, 30m or 1h30m", key, quoted(text))
	}
	return d, nil
}

// quoted shortens long values, which would hide the rest of an error.
func quoted(text string) string {
	const most = 120
	return strconv.Quote(excerpt.Of(text, most))
}
