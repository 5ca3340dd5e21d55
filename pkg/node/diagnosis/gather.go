package diagnosis

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

// Section is one part of a bug report. Sections are gathered at the same time and printed as
// YAML. A section that fails or is late does not affect the others.
type Section struct {
	Name   string
	Gather func(context.Context) (any, error)
}

// Limits bound each section of a report.
type Limits struct {
	Time  time.Duration
	Bytes int
}

// DefaultLimits leave room for 8 GPUs in all shapes, and for NVML calls that take seconds while
// the driver recovers a GPU.
var DefaultLimits = Limits{Time: 15 * time.Second, Bytes: 128 << 10}

// Gather writes all sections as one YAML document, in their order. A section that fails or is
// late has an error instead. A late one goes on: the caller's process is about to end.
func Gather(ctx context.Context, out io.Writer, limits Limits, sections ...Section) error {
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

// text is the content of a section, indented below its name.
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
		text = fmt.Sprintf("error: the section has %d bytes and is cut\nbeginning: |2\n%s", len(text), indented(Lines(text, l.Bytes)))
	}
	return indented(text)
}

// gather runs a section in a goroutine of its own, because a call of NVML cannot be ended.
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
		return nil, fmt.Errorf("no answer within %v: a call hangs", l.Time)
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

// Lines cuts a text to whole lines with at most so many bytes.
func Lines(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:strings.LastIndex(text[:most], "\n")+1]
}
