// Package containerd knows which versions of containerd support CDI. It never connects to one.
package containerd

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Advice for versions without CDI, which start containers without their GPUs and report no error.
const (
	// SwitchOn is for 1.7, whose configuration only the node shows.
	SwitchOn = `CDI is off in containerd 1.7 unless its configuration switches it on, and containers start without their GPUs: set enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"] in config.toml and restart containerd, or upgrade it to 2.0`
	// Upgrade is for versions before 1.7.
	Upgrade = "This containerd does not support CDI, and containers start without their GPUs: upgrade it to 2.0"
)

// Advice returns what an administrator must change in a runtime, which kubelet reports such as
// containerd://1.7.27. It is empty for runtimes with CDI.
func Advice(reported string) string {
	number, isContainerd := strings.CutPrefix(reported, "containerd://")
	release, err := version.ParseGeneric(strings.TrimPrefix(number, "v"))
	switch {
	case !isContainerd || err != nil || release.AtLeast(version.MajorMinor(2, 0)):
		return ""
	case release.AtLeast(version.MajorMinor(1, 7)):
		return SwitchOn
	}
	return Upgrade
}
