package explain

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/slice"
)

// untainted parts devices by whether the request tolerates their taints. Of each other one it has
// the first taint that repels it.
func (r request) untainted(from []*devices.Device) (sound []*devices.Device, tainted []resourceapi.DeviceTaint) {
	for _, dev := range from {
		if taint := dev.Repels(r.Tolerations); taint != nil {
			tainted = append(tainted, *taint)
		} else {
			sound = append(sound, dev)
		}
	}
	return sound, tainted
}

// fewUntainted says that taints leave too few devices.
func fewUntainted(r request, left int, tainted []resourceapi.DeviceTaint) *finding {
	all := left + len(tainted)
	return &finding{
		Blocker: blockerTaint, Distance: distanceTaint + 1 - float64(left)/float64(max(r.least(), all)),
		Text: fmt.Sprintf("%s wanted; of %s %d %s; %d left", r.wanted(), count(all, "matching device"), len(tainted), repelled(tainted), left),
		Hint: joined(remedies(tainted)),
	}
}

// repelled says of devices why they are kept from new claims.
func repelled(tainted []resourceapi.DeviceTaint) string {
	var words []string
	for _, taint := range tainted {
		word := "with the taint " + taintText(taint)
		if meaning, _ := slice.Meaning(taint.Key); meaning != "" {
			word += " (" + meaning + ")"
		}
		words = append(words, word)
	}
	return "get no new claims: " + tally(words)
}

// remedies say what to do about taints, each once.
func remedies(tainted []resourceapi.DeviceTaint) []string {
	var all []string
	for _, taint := range tainted {
		_, remedy := slice.Meaning(taint.Key)
		if remedy == "" {
			remedy = fmt.Sprintf("look with kubectl get devicetaintrules who has set the taint %s", taint.Key)
		}
		if !slices.Contains(all, remedy) {
			all = append(all, remedy)
		}
	}
	slices.Sort(all)
	return append(all, "a claim that tolerates the taint gets the device all the same")
}

// joined leaves out what is empty.
func joined(hints []string) string {
	return strings.Join(slices.DeleteFunc(hints, func(hint string) bool { return hint == "" }), "; ")
}

func taintText(t resourceapi.DeviceTaint) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + string(t.Effect)
}
