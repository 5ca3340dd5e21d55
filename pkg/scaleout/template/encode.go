package template

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
)

const (
	// schemaVersion changes if older controllers must not read what newer ones write.
	schemaVersion = 1
	// maxDecoded limits the bytes of an uncompressed template, so that no status can fill the controller's memory.
	maxDecoded = 8 << 20
)

// encoded is a template in the status of a group.
type encoded struct {
	SchemaVersion int                         `json:"schemaVersion"`
	Source        v1alpha1.TemplateSource     `json:"source"`
	LearnedFrom   string                      `json:"learnedFrom,omitempty"`
	LearnedAt     time.Time                   `json:"learnedAt,omitzero"`
	Policy        string                      `json:"policy,omitempty"`
	Invented      []resourceapi.QualifiedName `json:"invented,omitempty"`
	Node          encodedNode                 `json:"node"`
	Slices        []encodedSlice              `json:"slices,omitempty"`
}

type encodedNode struct {
	Name        string              `json:"name"`
	Labels      map[string]string   `json:"labels,omitempty"`
	Taints      []corev1.Taint      `json:"taints,omitempty"`
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	Capacity    corev1.ResourceList `json:"capacity,omitempty"`
}

type encodedSlice struct {
	Name string                        `json:"name"`
	Spec resourceapi.ResourceSliceSpec `json:"spec"`
}

// Encode writes a template for the status of a group.
func Encode(t *Template) ([]byte, error) {
	e := encoded{
		SchemaVersion: schemaVersion, Source: t.Source, LearnedFrom: t.LearnedFrom, LearnedAt: t.LearnedAt,
		Policy: t.Policy, Invented: t.invented,
		Node: encodedNode{
			Name: t.Node.Name, Labels: t.Node.Labels, Taints: t.Node.Spec.Taints,
			Allocatable: t.Node.Status.Allocatable, Capacity: t.Node.Status.Capacity,
		},
	}
	for _, s := range t.Slices {
		e.Slices = append(e.Slices, encodedSlice{Name: s.Name, Spec: s.Spec})
	}
	var buffer bytes.Buffer
	writer := gzip.NewWriter(&buffer)
	if err := json.NewEncoder(writer).Encode(e); err != nil {
		return nil, fmt.Errorf("write the template of node %s: %w", t.LearnedFrom, err)
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("compress the template of node %s: %w", t.LearnedFrom, err)
	}
	if buffer.Len() > v1alpha1.MaxTemplateBytes {
		return nil, fmt.Errorf("the template of node %s has %d bytes compressed, and a group's status keeps %d: it is not kept, and after its last node the group goes by the catalogue", t.LearnedFrom, buffer.Len(), v1alpha1.MaxTemplateBytes)
	}
	return buffer.Bytes(), nil
}

// Decode reads a template from the status of a group. It limits what it reads, and returns an error if that is no
// template.
func Decode(data []byte) (*Template, error) {
	raw, err := decompress(data)
	if err != nil {
		return nil, fmt.Errorf("read a learned template: %w: it is learned again from the group's next node", err)
	}
	e, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("read a learned template: %w: it is learned again from the group's next node", err)
	}
	t := &Template{
		Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: e.Node.Name, Labels: e.Node.Labels},
			Spec:       corev1.NodeSpec{Taints: e.Node.Taints},
			Status:     corev1.NodeStatus{Allocatable: e.Node.Allocatable, Capacity: e.Node.Capacity},
		},
		Source: e.Source, LearnedFrom: e.LearnedFrom, LearnedAt: e.LearnedAt, Policy: e.Policy, invented: e.Invented,
	}
	for _, s := range e.Slices {
		t.Slices = append(t.Slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: s.Name}, Spec: s.Spec})
	}
	return t, nil
}

func decompress(data []byte) ([]byte, error) {
	if len(data) > v1alpha1.MaxTemplateBytes {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are read", len(data), v1alpha1.MaxTemplateBytes)
	}
	source := bytes.NewReader(data)
	reader, err := gzip.NewReader(source)
	if err != nil {
		return nil, err
	}
	reader.Multistream(false)
	raw, err := io.ReadAll(io.LimitReader(reader, maxDecoded+1))
	switch {
	case err != nil:
		return nil, err
	case len(raw) > maxDecoded:
		return nil, fmt.Errorf("it has more than %d bytes uncompressed", maxDecoded)
	case source.Len() > 0:
		return nil, errors.New("something follows it")
	}
	return raw, nil
}

// parse accepts only what Encode of this version writes.
func parse(raw []byte) (encoded, error) {
	var version struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	if err := json.Unmarshal(raw, &version); err != nil {
		return encoded{}, err
	}
	if version.SchemaVersion != schemaVersion {
		return encoded{}, fmt.Errorf("its schema version is %d, and this controller reads %d", version.SchemaVersion, schemaVersion)
	}
	if err := checkQuantities(raw); err != nil {
		return encoded{}, err
	}
	var e encoded
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&e); err != nil {
		return encoded{}, err
	}
	return e, e.check()
}

// check checks what planning relies on.
func (e encoded) check() error {
	if e.Node.Name == "" {
		return errors.New("its node has no name")
	}
	if e.Source != v1alpha1.SourceLearned && e.Source != v1alpha1.SourceLiveNode && e.Source != v1alpha1.SourceCatalogue {
		return fmt.Errorf("its source is %q", e.Source)
	}
	seen, announced := map[devices.PoolID]int64{}, map[devices.PoolID]int64{}
	names := map[string]bool{}
	for _, s := range e.Slices {
		p := devices.PoolID{Driver: s.Spec.Driver, Name: s.Spec.Pool.Name}
		switch {
		case s.Name == "" || names[s.Name]:
			return fmt.Errorf("two slices are named %q, or one has no name", s.Name)
		case p.Driver == "" || p.Name == "" || s.Spec.NodeName == nil || *s.Spec.NodeName != e.Node.Name:
			return fmt.Errorf("slice %s is not of node %s, or lacks its driver or pool", s.Name, e.Node.Name)
		case len(s.Spec.Devices) > resourceapi.ResourceSliceMaxDevices:
			return fmt.Errorf("slice %s has %d devices, and a slice has at most %d", s.Name, len(s.Spec.Devices), resourceapi.ResourceSliceMaxDevices)
		case seen[p] > 0 && announced[p] != s.Spec.Pool.ResourceSliceCount:
			return fmt.Errorf("pool %s of driver %s has two numbers of slices", p.Name, p.Driver)
		}
		names[s.Name] = true
		seen[p]++
		announced[p] = s.Spec.Pool.ResourceSliceCount
	}
	for p, n := range seen {
		if n != announced[p] {
			return fmt.Errorf("pool %s of driver %s has %d of its %d slices", p.Name, p.Driver, n, announced[p])
		}
	}
	return nil
}
