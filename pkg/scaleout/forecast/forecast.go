// Package forecast keeps what is asked of the plan: for how many more pods like a sample there
// is room, now and after all growth. Who asks is answered from the last plan; the loop takes
// the samples along in the next one. It plans nothing itself.
package forecast
