package scaletarget

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/test/fixture"
)

const leaders = "leaderworkerset.sigs.k8s.io/name=llm,leaderworkerset.sigs.k8s.io/worker-index=0"

const gang = `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llm, namespace: default, uid: "1"}
spec:
  leaderWorkerTemplate:
    size: 4
    workerTemplate:
      spec: {containers: [{name: worker}]}
`

const rollout = `
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: llm, namespace: default, uid: "2"}
spec:
  template:
    metadata: {labels: {app: llm}}
    spec: {containers: [{name: server}]}
`

const adapter = `
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeploymentScalingAdapter
metadata: {name: llm, namespace: default, uid: "3"}
spec: {replicas: 1, template: {spec: {note: of something else}}}
`

func decode(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	content, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = object.UnmarshalJSON(content)
	}
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// scaleOf returns a Scale like the API server's, without zero values.
func scaleOf(replicas int64, selector string) *unstructured.Unstructured {
	scale := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"uid": "1", "resourceVersion": "7"}, "spec": map[string]any{}, "status": map[string]any{"replicas": int64(1)}}}
	if replicas != 0 {
		_ = unstructured.SetNestedField(scale.Object, replicas, "spec", "replicas")
	}
	if selector != "" {
		_ = unstructured.SetNestedField(scale.Object, selector, "status", "selector")
	}
	return scale
}

func TestWhatAReplicaConsistsOf(t *testing.T) {
	ofLeader := strings.Replace(gang, "    workerTemplate:", "    leaderTemplate:\n      spec: {containers: [{name: leader}]}\n    workerTemplate:", 1)
	for name, test := range map[string]struct {
		object, selector string
		replicas         int64
		members          string
		pods             string
	}{
		"leaders like workers":      {gang, leaders, 2, "1 worker, 3 worker", "leaderworkerset.sigs.k8s.io/name=llm"},
		"leaders of their own":      {ofLeader, leaders, 0, "1 leader, 3 worker", "leaderworkerset.sigs.k8s.io/name=llm"},
		"groups of one":             {strings.Replace(gang, "size: 4", "size: 1", 1), leaders, 1, "1 worker", ""},
		"groups without a size":     {strings.Replace(gang, "size: 4", "", 1), leaders, 1, "1 worker", ""},
		"one pod":                   {rollout, "app=llm", 3, "1 server", ""},
		"what is of something else": {adapter, "app=llm", 1, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			target, err := read(decode(t, test.object), scaleOf(test.replicas, test.selector))
			if err != nil {
				t.Fatal(err)
			}
			var members []string
			for _, m := range target.Members {
				members = append(members, string(rune('0'+m.Count))+" "+m.Template.Spec.Containers[0].Name)
			}
			if got := strings.Join(members, ", "); got != test.members || int64(target.Replicas) != test.replicas || target.Selector.String() != test.selector {
				t.Errorf("a replica is %q, %d of them by %s; want %q, %d by %s", got, target.Replicas, target.Selector, test.members, test.replicas, test.selector)
			}
			if pods := ""; target.Gang != nil {
				pods = target.Gang.Pods.String()
				if pods != test.pods || target.Gang.Label != "leaderworkerset.sigs.k8s.io/group-index" {
					t.Errorf("the pods are those by %s, told apart by %s", pods, target.Gang.Label)
				}
			} else if test.pods != "" {
				t.Error("it is no gang")
			}
		})
	}
}

func TestWhatCannotBeScaledIsSaidInWords(t *testing.T) {
	for name, test := range map[string]struct {
		object   string
		replicas int64
		selector string
		want     []string
	}{
		"no selector":           {rollout, 1, "", []string{"no selector", "wait until"}},
		"a selector of all":     {rollout, 1, " ", []string{"selects all pods"}},
		"a selector of nothing": {rollout, 1, "a in b", []string{"selector of its scale cannot be read"}},
		"fewer than none":       {rollout, -1, "app=llm", []string{"number of replicas from 0"}},
		"more than can be":      {rollout, 1 << 40, "app=llm", []string{"number of replicas from 0"}},
		"a group of none":       {strings.Replace(gang, "size: 4", "size: 0", 1), 1, leaders, []string{"size of its groups", "spec.leaderWorkerTemplate.size"}},
		"a group of very many":  {strings.Replace(gang, "size: 4", "size: 1000000", 1), 1, leaders, []string{"from 1 to 10000"}},
		"a size in words":       {strings.Replace(gang, "size: 4", "size: four", 1), 1, leaders, []string{"size of its groups"}},
		"no workers":            {strings.Replace(gang, "workerTemplate", "template", 1), 1, leaders, []string{"no spec.leaderWorkerTemplate.workerTemplate"}},
		"a template of lies":    {strings.Replace(rollout, "{name: server}", "{name: server, ports: 8}", 1), 1, "app=llm", []string{"pod template cannot be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(decode(t, test.object), scaleOf(test.replicas, test.selector))
			fixture.Sentence(t, err, test.want...)
		})
	}
}

func newKinds() *meta.DefaultRESTMapper {
	kinds := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "leaderworkerset.x-k8s.io", Version: "v1"}, {Group: "argoproj.io", Version: "v1alpha1"}, {Group: "example.com", Version: "v1"}})
	for _, kind := range []schema.GroupVersionKind{
		{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"},
		{Group: "argoproj.io", Version: "v1alpha1", Kind: "Rollout"},
		{Group: "example.com", Version: "v1", Kind: "Rollout"},
	} {
		kinds.Add(kind, meta.RESTScopeNamespace)
	}
	kinds.Add(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Fleet"}, meta.RESTScopeRoot)
	return kinds
}

func TestKindsAreFoundAsKubectlFindsThem(t *testing.T) {
	for _, test := range []struct{ word, group, want, refused string }{
		{"LeaderWorkerSet", "leaderworkerset.x-k8s.io", "leaderworkersets.leaderworkerset.x-k8s.io", ""},
		{"leaderworkersets", "", "leaderworkersets.leaderworkerset.x-k8s.io", ""},
		{"rollout", "argoproj.io", "rollouts.argoproj.io", ""},
		{"rollout", "", "", "several kinds: write one of Rollout.argoproj.io, Rollout.example.com"},
		{"rollout", "argoproj", "", "no kind rollout.argoproj"},
		{"fleet", "example.com", "", "cluster-scoped"},
		{"unicorn", "", "", "kubectl api-resources"},
	} {
		mapping, err := Kind(newKinds(), test.word, test.group)
		switch {
		case test.refused != "":
			fixture.Sentence(t, err, test.refused)
		case err != nil || mapping.Resource.GroupResource().String() != test.want:
			t.Errorf("%s of %s is %v, %v, want %s", test.word, test.group, mapping, err, test.want)
		}
	}
}

// cluster answers with the objects of a test, and counts requests.
type cluster struct {
	client.SubResourceClient
	object, scale *unstructured.Unstructured
	err           error
	gets, scales  int
}

func (c *cluster) RESTMapper() meta.RESTMapper { return newKinds() }

func (c *cluster) SubResource(string) client.SubResourceClient { return scales{cluster: c} }

func (c *cluster) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	c.gets++
	return c.give(c.object, key.Name, into)
}

func (c *cluster) give(from *unstructured.Unstructured, name string, into client.Object) error {
	if c.err != nil {
		return c.err
	}
	if from == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, name)
	}
	from.DeepCopyInto(into.(*unstructured.Unstructured))
	return nil
}

type scales struct {
	client.SubResourceClient
	cluster *cluster
}

func (s scales) Get(_ context.Context, object, into client.Object, _ ...client.SubResourceGetOption) error {
	s.cluster.scales++
	return s.cluster.give(s.cluster.scale, object.GetName(), into)
}

var llm = Name{Kind: "leaderworkerset", Group: "leaderworkerset.x-k8s.io", Namespace: "default", Name: "llm"}

func newReader(c *cluster) (*Reader, *clocktesting.FakeClock) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	return NewReader(c, clock, func(r schema.GroupResource) string { return "allow " + r.String() }), clock
}

func TestAnObjectIsReadAgainOnlyWhenItHasChanged(t *testing.T) {
	c := &cluster{object: decode(t, gang), scale: scaleOf(2, leaders)}
	r, clock := newReader(c)
	expect := func(replicas int32, scales, gets int) {
		t.Helper()
		target, err := r.Read(t.Context(), llm)
		if err != nil || target.Replicas != replicas || c.scales != scales || c.gets != gets {
			t.Fatalf("%+v, %v after %d questions for the scale and %d for the object, want %d replicas after %d and %d", target, err, c.scales, c.gets, replicas, scales, gets)
		}
	}
	expect(2, 1, 1)
	clock.Step(fresh - time.Second)
	expect(2, 1, 1)
	clock.Step(time.Second)
	expect(2, 2, 1)
	clock.Step(fresh)
	c.scale = scaleOf(3, leaders)
	c.scale.SetResourceVersion("8")
	expect(3, 3, 2)
}

func TestWhatCannotBeReadIsSaidInWords(t *testing.T) {
	resource := schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}
	for name, test := range map[string]struct {
		name    Name
		cluster cluster
		want    []string
	}{
		"missing":      {llm, cluster{}, []string{"does not exist in namespace", "create it"}},
		"no scale":     {llm, cluster{object: decode(t, gang)}, []string{"no scale subresource", "name the workload that it manages"}},
		"no right":     {llm, cluster{err: apierrors.NewForbidden(resource, "llm", errors.New("no"))}, []string{"may not be read", "allow leaderworkersets/scale.leaderworkerset.x-k8s.io"}},
		"no answer":    {llm, cluster{err: errors.New("connection refused")}, []string{"read leaderworkersets/scale.leaderworkerset.x-k8s.io", "connection refused"}},
		"no kind":      {Name{Kind: "Unicorn", Group: "example.com", Name: "llm"}, cluster{}, []string{"no kind Unicorn.example.com"}},
		"no selectors": {llm, cluster{object: decode(t, gang), scale: scaleOf(1, "")}, []string{"cannot be scaled", "no selector"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newReader(&test.cluster)
			_, err := r.Read(t.Context(), test.name)
			fixture.Sentence(t, err, test.want...)
			if errors.Is(err, ErrNotFound) != (name == "missing") {
				t.Errorf("%v is taken for an object that is not there", err)
			}
			asked := test.cluster.scales + test.cluster.gets
			if _, again := r.Read(t.Context(), test.name); again == nil || test.cluster.scales+test.cluster.gets != asked {
				t.Errorf("the cluster was asked again, and said %v", again)
			}
		})
	}
}

// As with a cache, an API server that does not answer for a while is no reason for a fallback.
func TestTheLastAnswerStandsWithoutAnAPIServer(t *testing.T) {
	c := &cluster{object: decode(t, gang), scale: scaleOf(2, leaders)}
	r, clock := newReader(c)
	if _, err := r.Read(t.Context(), llm); err != nil {
		t.Fatal(err)
	}
	c.err = errors.New("connection refused")
	for range stale / fresh {
		clock.Step(fresh)
		if target, err := r.Read(t.Context(), llm); err != nil || target.Replicas != 2 {
			t.Errorf("%s after it was read: %+v, %v", clock.Since(time.Unix(1e9, 0)), target, err)
		}
	}
	clock.Step(fresh)
	_, err := r.Read(t.Context(), llm)
	fixture.Sentence(t, err, "connection refused")
	c.err = nil
	clock.Step(fresh)
	if _, err := r.Read(t.Context(), llm); err != nil {
		t.Fatal(err)
	}
	c.object, c.scale = nil, nil
	clock.Step(fresh)
	if _, err := r.Read(t.Context(), llm); !errors.Is(err, ErrNotFound) {
		t.Errorf("an object that is gone is read with %v", err)
	}
}
