// Package containerd knows which versions of containerd give containers the devices that CDI
// specifications describe. It talks to none.
package containerd

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Advice of versions that need some. A runtime without CDI starts containers without their GPUs, and
// says nothing.
const (
	// SwitchOn is for 1.7, whose configuration cannot be seen from outside the node.
	SwitchOn = `CDI is off in containerd 1.7 unless its configuration switches it on, and containers start without their GPUs: set enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"] in config.toml and restart containerd, or upgrade it to 2.0`
	// Upgrade is for versions before 1.7.
	Upgrade = "This containerd knows no CDI, and containers start without their GPUs: upgrade it to 2.0"
)

// Advice is what an operator must know of a node's container runtime, whose name and version
// kubelet reports such as containerd://1.7.27; empty for those that use CDI by themselves.
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
