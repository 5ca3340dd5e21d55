// Package account tells who has a node's GPUs: which claims and pods have which device, and
// how many GPU-seconds each namespace has had. It is told what is held, and asks no hardware and no
// API server. It never decides who may have a device.
package account

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
)

// States are what a device that is held can be at, in the order of spent.
var states = [...]string{"busy", "idle", "unknown"}

// spent are GPU-seconds by state.
type spent [len(states)]float64

// Options configure an Account. All fields are required.
type Options struct {
	// Utilization is the part of the last seconds in which a device ran something, 0 to 1. It is
	// false for a device that does not tell.
	Utilization func(device string) (ratio float64, known bool)
	// Unnamed keeps claims and pods out of the metrics.
	Unnamed bool
}

// Account has what is held, and what namespaces have had since the process started. It is safe
// for concurrent use.
type Account struct {
	metrics.BaseStableCollector
	Options

	mu    sync.Mutex
	holds []Hold
	// settled is until when the holds are in spent.
	settled time.Time
	// spent are by namespace. It keeps those of which no claim is left: a counter does not go back.
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

// Holds are what was set last. Nobody changes them.
func (a *Account) Holds() []Hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds
}

// Settle adds up what was held until now, as busy as it is now.
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
