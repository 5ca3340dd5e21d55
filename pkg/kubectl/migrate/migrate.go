// Package migrate rewrites manifests for NVIDIA's device plugin, and what belongs to them, for claims of
// Mica's DeviceClasses, and says what cannot move. It decodes strictly, changes only what it has
// decoded, and gives back what needs no change byte for byte; so its own output needs none. It
// reads no file and no cluster.
package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits of what is read, so that a wrong file or pipe ends in a sentence.
const (
	MaxBytes     = 16 << 20
	maxDocuments = 10000
)

// Source is a text with manifests.
type Source struct {
	// Name is what the user calls it: a file, or - for the standard input.
	Name string
	Text []byte
}

// Options say what the manifests do not.
type Options struct {
	// Config is the name of one of several configs of the device plugin: the one of the nodes on
	// which the workloads run.
	Config string
	// Profile is the MIG profile that nvidia.com/gpu stands for, with the device plugin's
	// migStrategy single; empty where it stands for entire GPUs.
	Profile string
	// Scaler is host:port at which KEDA reaches Mica's controller.
	Scaler string
	// Live tells that the sources are objects of a cluster: those that need no change are not
	// among the manifests, and what cannot change while it runs cannot move.
	Live bool
}

// Result is what was made of the sources.
type Result struct {
	// Manifests are the documents of the sources, in their order, with what is new before what
	// needs it, and without configs of the device plugin that are no object of Kubernetes.
	Manifests []byte
	Report    Report
}

// BadInput is an error of what was given: another input can help, and nothing else.
type BadInput struct{ Err error }

func (b BadInput) Error() string { return b.Err.Error() }
func (b BadInput) Unwrap() error { return b.Err }

// bad is a BadInput that says where.
func bad(source string, line int, format string, args ...any) error {
	return BadInput{fmt.Errorf("%s, from line %d: %w", source, line, fmt.Errorf(format, args...))}
}

// Run migrates the sources. An error is a BadInput.
func Run(sources []Source, o Options) (Result, error) {
	documents, err := parseAll(sources)
	if err != nil {
		return Result{}, err
	}
	m := &migration{Options: o, kinds: sorted(documents)}
	if err := m.readConfigs(); err != nil {
		return Result{}, err
	}
	var texts [][]byte
	for _, d := range documents {
		of, err := m.document(d)
		if err != nil {
			return Result{}, err
		}
		texts = append(texts, of...)
	}
	return Result{Manifests: stream(texts), Report: m.report()}, nil
}

// stream writes documents one after the other.
func stream(texts [][]byte) []byte {
	var out bytes.Buffer
	for i, text := range texts {
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
		if text[len(text)-1] != '\n' {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}

// migration is one run.
type migration struct {
	Options
	kinds
	findings []Finding
}

// kinds are the documents of all sources, by what is looked up of them.
type kinds struct {
	configs []config
	all     []document
	// given counts those of the sources.
	given int
}

func sorted(documents []document) kinds {
	var k kinds
	for _, d := range documents {
		for _, one := range append(slices.Clip(d.items), d) {
			k.all = append(k.all, one)
			k.configs = append(k.configs, configsIn(one)...)
			if one.node != nil && one.items == nil {
				k.given++
			}
		}
	}
	return k
}

// document migrates one, which may become several: what is new comes first.
func (m *migration) document(d document) ([][]byte, error) {
	if d.items != nil {
		return m.list(d)
	}
	made, changed, err := m.migrate(d)
	if err != nil {
		return nil, err
	}
	var texts [][]byte
	for _, object := range made {
		text, err := encode(object)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	switch {
	case d.plain(), !changed && m.Live:
		return texts, nil
	case !changed:
		return append(texts, d.text), nil
	}
	text, err := d.encode()
	if err != nil {
		return nil, bad(d.source, d.line, "write %s: %w", d.name(), err)
	}
	return append(texts, text), nil
}

// list migrates the items of a List, which are documents of their own once one has changed.
func (m *migration) list(d document) ([][]byte, error) {
	var texts [][]byte
	changed := false
	for _, item := range d.items {
		of, err := m.document(item)
		if err != nil {
			return nil, err
		}
		changed = changed || len(of) != 1 || !bytes.Equal(of[0], item.text)
		texts = append(texts, of...)
	}
	if !changed {
		return [][]byte{d.text}, nil
	}
	return texts, nil
}

// migrate changes a document in place and makes what it needs.
func (m *migration) migrate(d document) (made []any, changed bool, err error) {
	if d.node == nil {
		return nil, false, nil
	}
	if configs := configsIn(d); len(configs) > 0 {
		return m.policies(configs), false, nil
	}
	if w, known := workloads[d.kind]; known && strings.HasPrefix(d.apiVersion, w.group) {
		return m.workload(d, w)
	}
	if o, is := operatorIn(d); is {
		m.operator(d, o)
		return nil, false, nil
	}
	switch {
	case d.kind == "ResourceQuota" && d.apiVersion == "v1":
		changed, err = m.quota(d)
	case d.kind == "ScaledObject" && strings.HasPrefix(d.apiVersion, "keda.sh/"):
		changed, err = m.scaledObject(d)
	case d.kind == "HorizontalPodAutoscaler":
		m.autoscaler(d)
	case strings.HasPrefix(d.apiVersion, "resource.k8s.io/"), strings.HasPrefix(d.apiVersion, "resource.nvidia.com/"):
		err = m.nvidia(d)
	case d.kind == "PrometheusRule":
		m.rules(d)
	default:
		m.unknown(d)
	}
	return nil, changed, err
}

// unknown tells of GPUs in a kind of which this package does not know where its pods are.
func (m *migration) unknown(d document) {
	names := resourcesIn(d.node)
	if len(names) == 0 {
		return
	}
	m.find(d, Blocked, "", fmt.Sprintf("it asks for %s, and where %s has its pods is not known here", strings.Join(names, ", "), d.kind),
		"give its pod template resourceClaims by hand, as kubectl gpu migrate prints them for a Deployment with the same limits")
}

// rules tells of alerts by DCGM's series.
func (m *migration) rules(d document) {
	if dcgm.Match(d.text) {
		m.find(d, Look, "", "DCGM's exporter goes on beside Mica, and names the pods of claims only from a version on that knows DRA",
			"see whether its series have the labels pod and namespace, or take Mica's own: mica_device_utilization_ratio")
	}
}

// errEmpty is that of sources in which nothing is.
var errEmpty = errors.New("there is no manifest in what was given: name a file, a directory with .yaml, .yml or .json files, or - for the standard input")

func parseAll(sources []Source) ([]document, error) {
	var documents []document
	total, count := 0, 0
	for _, source := range sources {
		if total += len(source.Text); total > MaxBytes {
			return nil, BadInput{fmt.Errorf("the manifests are more than %d MiB: migrate them in parts", MaxBytes>>20)}
		}
		of, err := parse(source)
		if err != nil {
			return nil, err
		}
		documents = append(documents, of...)
		for _, d := range of {
			count += 1 + len(d.items)
		}
	}
	if count > maxDocuments {
		return nil, BadInput{fmt.Errorf("there are %d manifests, and at most %d are migrated at once: migrate them in parts", count, maxDocuments)}
	}
	if !slices.ContainsFunc(documents, func(d document) bool { return d.node != nil }) {
		return nil, BadInput{errEmpty}
	}
	return documents, nil
}
