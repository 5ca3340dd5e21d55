package pair

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the logs of the scenarios")

// TestScenarios plays testdata/*.txt: what happens, up to a line of dashes, and the log of it.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, want, _ := strings.Cut(string(text), "---\n")
			got := play(t, script).log.String()
			if *update {
				if err := os.WriteFile(file, []byte(script+"---\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("another log, - is expected:\n%s", diff)
			}
		})
	}
}

// play does the commands of a script in a new world.
func play(t *testing.T, script string) *world {
	var w *world
	var groups []*simGroup
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if words[0] == "group" {
			groups = append(groups, parseGroup(t, words[1:]))
			continue
		}
		if w == nil {
			w = newWorld(t, groups...)
		}
		if err := w.command(words); err != nil {
			t.Fatalf("%s: %v", strings.TrimSpace(line), err)
		}
	}
	w.summary()
	return w
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

// parseGroup reads NAME KEY=VALUE...
func parseGroup(t *testing.T, words []string) *simGroup {
	g := &simGroup{name: words[0], promised: 8, boot: time.Minute, slices: 40 * time.Second, caMax: 5, timeout: 30 * time.Minute}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
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
		default:
			t.Fatalf("group %s: no such thing as %s", g.name, key)
		}
	}
	if g.real == 0 {
		g.real = g.promised
	}
	return g
}
