//go:build race

package abi_test

const (
	raceEnabled = true
	daemonName  = "nvml-sim-race"
)
