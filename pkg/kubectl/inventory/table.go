package inventory

import (
	"cmp"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// Table has a row per GPU. The wide table adds UUIDs, room and the devices of each claim.
func Table(gpus []fleet.GPU, wide bool) terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{
		{Title: "NODE"}, {Title: "GPU"}, {Title: "PRODUCT", Spare: 2}, {Title: "IN USE"}, {Title: "MEMORY", Spare: 1, Right: true}, {Title: "HEALTH"},
	}}
	if wide {
		t.Columns = append(t.Columns, terminal.Column{Title: "ROOM"}, terminal.Column{Title: "UUID"})
	}
	t.Columns = append(t.Columns, terminal.Column{Title: "HELD BY", Wrapped: true})
	for _, g := range gpus {
		row := terminal.Row{
			{Text: cmp.Or(g.Node, g.Pool)}, {Text: g.Name}, {Text: product(g.Product)},
			{Text: inUse(g)}, {Text: memory(g)}, health(g, wide),
		}
		if wide {
			row = append(row, terminal.Cell{Text: room(g.Room)}, terminal.Cell{Text: g.UUID})
		}
		t.Rows = append(t.Rows, append(row, terminal.Cell{Text: heldBy(g.Claims, wide)}))
	}
	return t
}

// product leaves out the vendor.
func product(name string) string { return strings.TrimPrefix(name, "NVIDIA ") }

// memory is the memory in use and in total.
func memory(g fleet.GPU) string {
	used, total := gibibytes(g.Memory.UsedBytes), gibibytes(g.Memory.TotalBytes)
	switch {
	case total == "":
		return used
	case used == "" && g.Room == nil:
		return total
	}
	return strings.TrimSuffix(cmp.Or(used, "0Gi"), "Gi") + "/" + total
}

// gibibytes is such as 79.6Gi; empty for 0.
func gibibytes(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return strings.TrimSuffix(inGibibytes(float64(bytes)), ".0") + "Gi"
}

// words are for the attribute type of devices.
var words = map[string]string{
	"gpu": "whole", "mig": "MIG", "timeslice": "time-slice", "mps": "MPS",
	"mig-timeslice": "MIG time-slice", "mig-mps": "MIG MPS",
}

func shape(kind, profile string, shared bool) string {
	word, known := words[kind]
	switch {
	case !known:
		word = kind
	case shared && kind == "gpu":
		word = "shared"
	}
	return strings.TrimSpace(word + " " + profile)
}

// inUse counts partitions of one profile. If no claim was seen and Room is unknown, hidden claims may
// hold the GPU.
func inUse(g fleet.GPU) string {
	switch {
	case len(g.Uses) == 0 && g.Room == nil:
		return "unknown"
	case len(g.Uses) == 0:
		return "free"
	}
	var texts []string
	count := map[string]int{}
	for _, u := range g.Uses {
		text := u.Device
		if u.Type != "" {
			text = shape(u.Type, u.Profile, u.Shared) + parts(u.Parts, u.OfParts)
		}
		if count[text]++; count[text] == 1 {
			texts = append(texts, text)
		}
	}
	for i, text := range texts {
		if n := count[text]; n > 1 {
			texts[i] = fmt.Sprintf("%d× %s", n, text)
		}
	}
	return strings.Join(texts, ", ")
}

func parts(n, of int64) string {
	if of == 0 {
		return ""
	}
	return fmt.Sprintf(" %d/%d", n, of)
}

// room lists the shapes that are free, in the order of publishing.
func room(of []fleet.Room) string {
	if of == nil {
		return "unknown"
	}
	var texts []string
	profiles := map[string][]string{}
	for _, r := range of {
		kind := shape(r.Type, "", r.Shared)
		if r.Profile != "" {
			if profiles[kind] == nil {
				texts = append(texts, kind)
			}
			profiles[kind] = append(profiles[kind], r.Profile)
			continue
		}
		texts = append(texts, kind+parts(r.Parts, r.OfParts))
	}
	for i, text := range texts {
		if of := profiles[text]; of != nil {
			texts[i] = text + " " + strings.Join(of, "|")
		}
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}

// health is "ok", or the taints and problems of the GPU, the worst first.
func health(g fleet.GPU, wide bool) terminal.Cell {
	var texts []string
	style := terminal.Good
	for _, effect := range []resourceapi.DeviceTaintEffect{resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNone} {
		for _, taint := range g.Taints {
			if taint.Effect != effect {
				continue
			}
			texts = append(texts, taintText(taint, wide))
			switch {
			case effect != resourceapi.DeviceTaintEffectNone:
				style = terminal.Bad
			case style == terminal.Good:
				style = terminal.Warning
			}
		}
	}
	if g.Problem != "" {
		style = terminal.Bad
		texts = append(texts, "incomplete")
	}
	switch {
	case len(texts) == 0 && g.UUID == "" && g.Product == "":
		return terminal.Cell{Text: "unknown"}
	case len(texts) == 0:
		return terminal.Cell{Text: "ok", Style: style}
	}
	return terminal.Cell{Text: strings.Join(texts, ", "), Style: style}
}

// taintText is the taint, in the wide table as kubectl writes taints of nodes. The narrow table names
// the effect only if it is None.
func taintText(t fleet.Taint, wide bool) string {
	key := t.Key
	if at := strings.LastIndex(key, "/"); at >= 0 && !wide {
		key = key[at+1:]
	}
	if t.Value != "" {
		key += "=" + t.Value
	}
	if wide || t.Effect == resourceapi.DeviceTaintEffectNone {
		key += ":" + string(t.Effect)
	}
	if t.Rule != "" && wide {
		key += " by rule " + t.Rule
	}
	if t.Devices < t.OfDevices {
		key += fmt.Sprintf(" (%d of %d)", t.Devices, t.OfDevices)
	}
	return key
}

// heldBy names pods, and claims that no pod uses. The wide table adds the devices of each.
func heldBy(claims []fleet.Holding, wide bool) string {
	var lines []string
	seen := map[string]bool{}
	for _, h := range claims {
		names := h.Pods
		if len(names) == 0 {
			names = []string{"claim " + h.Claim}
		}
		for _, name := range names {
			line := h.Namespace + "/" + name
			if len(h.Pods) == 0 {
				line = "claim " + h.Namespace + "/" + h.Claim
			}
			if wide {
				line += ": " + holdingText(h)
			} else if h.Admin {
				line += " (looks only)"
			}
			if !seen[line] {
				lines = append(lines, line)
			}
			seen[line] = true
		}
	}
	return strings.Join(lines, "\n")
}

func holdingText(h fleet.Holding) string {
	return fmt.Sprintf("%s by request %s of claim %s", h.Device, h.Request, h.Claim) + part(h)
}

// part describes a share; empty for a whole device.
func part(h fleet.Holding) string {
	var texts []string
	if h.Shares > 0 {
		texts = append(texts, fmt.Sprintf("shares: %d", h.Shares))
	}
	if h.Cores > 0 {
		texts = append(texts, fmt.Sprintf("cores: %d%%", h.Cores))
	}
	if h.MemoryBytes > 0 {
		texts = append(texts, "memory: "+gibibytes(h.MemoryBytes))
	}
	if h.Admin {
		texts = append(texts, "looks only")
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts, ", ") + ")"
}
