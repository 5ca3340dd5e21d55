// Package profile has the thresholds by which kinds of GPU workloads are scaled: data in one
// file, which an operator may override. It decides nothing.
package profile

import "time"

// Profile is how one kind of workload is scaled.
type Profile struct {
	Name string
	// Targets is, by metric or signal, the value a replica is scaled out above.
	Targets map[string]float64
	// ScaleInBelow is, by metric, the value below which a replica is taken away.
	ScaleInBelow map[string]float64
	// Activation is, by metric, the value above which the first replica starts.
	Activation map[string]float64
	// Cooldown is how long nothing is asked for before the last replica goes.
	Cooldown time.Duration
}
