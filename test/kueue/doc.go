// Package kueue holds the published slices, the chart's DeviceClasses and the mappings in
// docs/operate/kueue.md against Kueue's own functions that charge quotas. It is a module of its
// own: the driver does not depend on Kueue.
package kueue
