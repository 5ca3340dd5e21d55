package inventory

import (
	"cmp"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// Table is the inventory for people, wide with UUIDs, claims and room.
func Table(i Inventory, wide bool) terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{
		{Title: "NODE", Key: true}, {Title: "GPU", Key: true}, {Title: "PRODUCT", Spare: 2}, {Title: "IN USE"}, {Title: "MEMORY", Spare: 1, Right: true}, {Title: "HEALTH"},
	}}
	if wide {
		t.Columns = append(t.Columns, terminal.Column{Title: "ROOM"}, terminal.Column{Title: "UUID"})
	}
	t.Columns = append(t.Columns, terminal.Column{Title: "HELD BY", Wrapped: true})
	for _, g := range i.GPUs {
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

// product leaves out what all products have in common.
func product(name string) string { return strings.TrimPrefix(name, "NVIDIA ") }

// memory is what is used of what there is.
func memory(g GPU) string {
	used, total := gibibytes(g.Memory.UsedBytes), gibibytes(g.Memory.TotalBytes)
	switch {
	case total == "":
		return used
	case used == "" && g.Room == nil:
		return total
	}
	return strings.TrimSuffix(cmp.Or(used, "0Gi"), "Gi") + "/" + total
}

// gibibytes is nothing for nothing.
func gibibytes(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return terminal.Gibibytes(bytes)
}

// words for the types that devices have by the attribute of this name. A partition is known by its
// profile.
var words = map[string]string{
	"gpu": "whole", "mig": "MIG", "timeslice": "time-slice", "mps": "MPS", "vfio": "passthrough",
	"mig-timeslice": "MIG time-slice", "mig-mps": "MIG MPS",
}

func shape(kind, profile string) string {
	word, known := words[kind]
	if !known {
		word = kind
	}
	return strings.TrimSpace(word + " " + profile)
}

// inUse counts shapes that are alike: partitions of one profile. Without any, others may have it
// whose claims were not seen.
func inUse(g GPU) string {
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
			text = shape(u.Type, u.Profile) + parts(u.Parts, u.OfParts)
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

// room says what could be had, the shapes as they are published.
func room(of []Room) string {
	if of == nil {
		return "unknown"
	}
	var texts []string
	profiles := map[string][]string{}
	for _, r := range of {
		kind := shape(r.Type, "")
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

// health is one word where all is well, and else what keeps claims away, the worst first.
func health(g GPU, wide bool) terminal.Cell {
	var texts []string
	style := terminal.Good
	for _, effect := range []resourceapi.DeviceTaintEffect{resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNone} {
		for _, taint := range g.Taints {
			if taint.Effect != effect {
				continue
			}
			texts = append(texts, taint.text(wide))
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

// text is the taint, wide as kubectl writes those of nodes. One that keeps claims away is the rule,
// one that does not says so.
func (t Taint) text(wide bool) string {
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

// heldBy names pods, and claims that no pod uses; wide also what each has.
func heldBy(claims []Hold, wide bool) string {
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
				line += ": " + h.text()
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

// text is what a claim has, and by which request.
func (h Hold) text() string {
	return fmt.Sprintf("%s by request %s of claim %s", h.Device, h.Request, h.Claim) + h.part()
}

// part is what a share has of its device, and nothing of who has all of it.
func (h Hold) part() string {
	var has []string
	if h.Shares > 0 {
		has = append(has, fmt.Sprintf("shares: %d", h.Shares))
	}
	if h.Cores > 0 {
		has = append(has, fmt.Sprintf("cores: %d%%", h.Cores))
	}
	if h.MemoryBytes > 0 {
		has = append(has, "memory: "+gibibytes(h.MemoryBytes))
	}
	if h.Admin {
		has = append(has, "looks only")
	}
	if len(has) == 0 {
		return ""
	}
	return " (" + strings.Join(has, ", ") + ")"
}
