//go:build !race

package abi_test

const (
	raceEnabled = false
	daemonName  = "nvml-sim"
)
