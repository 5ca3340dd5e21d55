// Package account counts which claims and pods hold which device of a node, and how many
// GPU-seconds each namespace has used. Its caller sets the devices; it asks no hardware and no
// API server. It never decides which claim may have a device.
package account

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
)

// states of a device that is held, in the order of spent.
var states = [...]string{"busy", "idle", "unknown"}

// spent are GPU-seconds by state.
type spent [len(states)]float64

// Options configure an Account. All fields are required.
type Options struct {
	// Utilization is the part of the last seconds in which a device ran something, 0 to 1. It
	// returns false if the device does not report it.
	Utilization func(device string) (ratio float64, known bool)
	// Unnamed keeps claims and pods out of the metrics.
	Unnamed bool
}

// Account has the devices that are held, and the GPU-seconds of namespaces since the process
// started. It is safe for concurrent use.
type Account struct {
	metrics.BaseStableCollector
	Options

	mu    sync.Mutex
	holds []Hold
	// settled is the time until which the holds are in spent.
	settled time.Time
	// spent is by namespace. It keeps namespaces without claims: a counter does not go back.
	spent map[string]spent
}

// New returns an Account of nothing.
func New(options Options) *Account { return &Account{Options: options, spent: map[string]spent{}} }

// Set replaces what is held from now on.
func (a *Account) Set(holds []Hold) {
	a.Settle()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds = holds
}

// Holds are those of the last Set. They must not be changed.
func (a *Account) Holds() []Hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds
}

// Settle adds up the GPU-seconds until now, with the utilization of now.
func (a *Account) Settle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	elapsed := now.Sub(a.settled).Seconds()
	a.settled = now
	for _, hold := range a.holds {
		if hold.GPUs == 0 {
			continue
		}
		seconds := elapsed * hold.GPUs
		sums := a.spent[hold.Namespace]
		if busy, known := a.Utilization(hold.Device); known {
			sums[0] += seconds * busy
			sums[1] += seconds * (1 - busy)
		} else {
			sums[2] += seconds
		}
		a.spent[hold.Namespace] = sums
	}
}
