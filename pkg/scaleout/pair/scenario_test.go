package pair

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/mica-gpu/mica/test/fixture"
)

// The files in testdata have a script above the line, and its log below.
func TestScenarios(t *testing.T) {
	fixture.Scenarios(t, func(t *testing.T, script []fixture.Line) string {
		var groups []*simGroup
		for len(script) > 0 && script[0].Words[0] == "group" {
			groups = append(groups, parseGroup(t, script[0]))
			script = script[1:]
		}
		w := newWorld(t, groups...)
		for _, line := range script {
			if err := w.command(line.Words); err != nil {
				t.Fatalf("%s: %v", line.Text, err)
			}
		}
		w.summary()
		return w.log.String()
	})
}

func (w *world) command(words []string) error {
	switch words[0] {
	case "pods": // pods NAME COUNT NEEDS
		count, err1 := strconv.Atoi(words[2])
		needs, err2 := strconv.Atoi(words[3])
		if err1 != nil || err2 != nil {
			return fmt.Errorf("pods NAME COUNT DEVICES: %w", errors.Join(err1, err2))
		}
		w.addPods(words[1], count, needs)
	case "delete":
		w.deletePods(words[1])
	case "run":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		w.run(d, time.Second)
	case "autoscaler":
		w.autoscalerDown = words[1] == "down"
	case "repair":
		for _, g := range w.groups {
			if g.name == words[1] {
				g.broken = false
			}
		}
	case "budget": // budget DEVICES, or none
		devices, err := strconv.Atoi(words[1])
		if err != nil && words[1] != "none" {
			return err
		}
		w.budget = devices
	case "admission":
		w.admission = words[1] == "on"
	case "dies": // dies GROUP
		for _, g := range w.groups {
			if g.name == words[1] {
				w.dies(g)
			}
		}
	case "jump":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		w.now = w.now.Add(d)
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

func (w *world) summary() {
	for _, g := range w.groups {
		w.logf("%s has %d nodes", g.name, len(g.nodes))
	}
	w.logf("%d pods wait, %d placeholders are left", len(w.pending()), len(w.placeholders()))
}

// parseGroup reads group NAME KEY=VALUE...
func parseGroup(t *testing.T, line fixture.Line) *simGroup {
	g := &simGroup{name: line.Words[1], promised: 8, boot: time.Minute, slices: 40 * time.Second, caMax: 5, timeout: 30 * time.Minute,
		provision: 15 * time.Minute, startup: 15 * time.Minute}
	for _, flag := range line.Words[2:] {
		line.Options[flag] = ""
	}
	for key, value := range line.Options {
		number, _ := strconv.Atoi(value)
		duration, _ := time.ParseDuration(value)
		switch key {
		case "devices":
			g.promised = number
		case "really":
			g.real = number
		case "boot":
			g.boot = duration
		case "slices":
			g.slices = duration
		case "max":
			g.max = number
		case "caMax":
			g.caMax = number
		case "price":
			g.price = number
		case "timeout":
			g.timeout = duration
		case "broken":
			g.broken = true
		case "frozen":
			g.frozen = true
		case "stagger":
			g.stagger = duration
		case "startupTaint":
			g.startupTaint = true
		case "agentTaint":
			g.agentTaint = value
		case "provision":
			g.provision = duration
		case "startup":
			g.startup = duration
		default:
			t.Fatalf("group %s: no such thing as %s", g.name, key)
		}
	}
	if g.real == 0 {
		g.real = g.promised
	}
	return g
}
