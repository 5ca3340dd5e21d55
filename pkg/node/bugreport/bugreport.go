// Package bugreport collects what whoever mends a fault has to know of one node: what is installed, how
// it is set, what the NVIDIA driver says, what is published and prepared. It changes nothing, takes no
// lock, and shows no secret. What is right and wrong about a node is for pkg/node/selftest to say.
package bugreport

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"
)

// Section is one part of a report. Gather may be called at the same time as that of others, and its
// value is shown as YAML; what its context ends for is said of the section alone.
type Section struct {
	Name   string
	Gather func(context.Context) (any, error)
}

// Limits bound each section of a report.
type Limits struct {
	// Time is how long it may take. All are gathered at once.
	Time time.Duration
	// Bytes is how much of it is shown.
	Bytes int
}

// DefaultLimits leave room for 8 GPUs in all shapes, and for calls of NVML that a driver holds up for
// seconds while it recovers a GPU.
var DefaultLimits = Limits{Time: 15 * time.Second, Bytes: 128 << 10}

// Write gathers all sections and writes them as one YAML document, in their order. A section that fails
// or does not end in time has its error instead, and is left behind: the caller's process is about to end.
func Write(ctx context.Context, out io.Writer, limits Limits, sections ...Section) error {
	texts := make([]string, len(sections))
	var group sync.WaitGroup
	for i, section := range sections {
		group.Go(func() { texts[i] = limits.text(ctx, section) })
	}
	group.Wait()
	for i, section := range sections {
		if _, err := fmt.Fprintf(out, "%s:\n%s", section.Name, texts[i]); err != nil {
			return err
		}
	}
	return nil
}

// text is what a section has, indented below its name.
func (l Limits) text(ctx context.Context, section Section) string {
	value, err := l.gather(ctx, section)
	if err != nil {
		value = map[string]string{"error": err.Error()}
	}
	text, err := encode(value)
	if err != nil {
		text = fmt.Sprintf("error: %q\n", "the section cannot be encoded: "+redact(err.Error()))
	}
	if len(text) > l.Bytes {
		end := strings.LastIndex(text[:l.Bytes], "\n") + 1
		text = fmt.Sprintf("error: the section has %d bytes, of which these are the first\nbeginning: |2\n%s", len(text), indented(text[:end]))
	}
	return indented(text)
}

// gather asks for a section in a goroutine of its own, because a call of NVML cannot be ended.
func (l Limits) gather(ctx context.Context, section Section) (value any, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.Time)
	defer cancel()
	done := make(chan struct{})
	var found any
	var failure error
	go func() {
		defer close(done)
		defer func() {
			if panicked := recover(); panicked != nil {
				failure = fmt.Errorf("panic: %v: report this as a bug", panicked)
			}
		}()
		found, failure = section.Gather(ctx)
	}()
	select {
	case <-done:
		return found, failure
	case <-ctx.Done():
		return nil, fmt.Errorf("no answer within %v: what it asks hangs", l.Time)
	}
}

// encode makes YAML of a value, without secrets.
func encode(value any) (string, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber() // memory in bytes is no float
	var plain any
	if err := decoder.Decode(&plain); err != nil {
		return "", err
	}
	text, err := yaml.Marshal(withoutSecrets(plain))
	return string(text), err
}

func indented(text string) string {
	var all strings.Builder
	for line := range strings.Lines(text) {
		all.WriteString("  " + line)
	}
	return all.String()
}
