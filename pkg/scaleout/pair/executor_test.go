package pair

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/google/go-cmp/cmp"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func apiWith(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	return fake.NewClientBuilder().WithScheme(newScheme(t)).WithStatusSubresource(&v1alpha1.GPUNodeGroup{}).
		WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

func placeholderOf(group, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "mica", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{v1alpha1.LabelNodeGroup: group},
	}}
}

func do(t *testing.T, c client.Client, actions ...Action) error {
	t.Helper()
	return (&Executor{Client: c}).Do(context.Background(), &Result{Actions: actions, Status: map[string]GroupStatus{}})
}

func TestCreateTwiceIsOnce(t *testing.T) {
	c := apiWith(t, interceptor.Funcs{})
	pod := placeholderOf("p5", "mica-p5-0")
	owner := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUNodeGroup", Name: "p5", Controller: &owner}}
	for range 2 {
		if err := do(t, c, createPlaceholder{Pod: pod}); err != nil {
			t.Fatal(err)
		}
	}
	var pods corev1.PodList
	if err := c.List(context.Background(), &pods); err != nil || len(pods.Items) != 1 {
		t.Errorf("%d placeholders, %v; want one", len(pods.Items), err)
	}
}

func TestAPlaceholderThatIsRefusedIsNotInFlight(t *testing.T) {
	c := apiWith(t, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
		return apierrors.NewForbidden(corev1.Resource("pods"), "mica-p5-0", errors.New("exceeded quota"))
	}})
	result := &Result{
		Actions: []Action{createPlaceholder{Pod: placeholderOf("p5", "mica-p5-0")}, createPlaceholder{Pod: placeholderOf("p5", "mica-p5-1")}},
		Status:  map[string]GroupStatus{"p5": {InFlight: []v1alpha1.InFlight{{ID: "mica-p5-7"}, {ID: "mica-p5-0"}, {ID: "mica-p5-1"}}}},
	}
	if err := (&Executor{Client: c}).Do(t.Context(), result); !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	got := result.Status["p5"]
	if len(got.InFlight) != 1 || got.InFlight[0].ID != "mica-p5-7" {
		t.Errorf("in flight are %v, want what is there", got.InFlight)
	}
	if got.NotReady != v1alpha1.ReasonScaleUpFailed || !strings.Contains(got.Message, "exceeded quota; check quotas") {
		t.Errorf("%s: %s", got.NotReady, got.Message)
	}
}

func TestCreateNamesAPodWithThePlaceholdersName(t *testing.T) {
	squatter := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "mica", Name: "mica-p5-0", Labels: map[string]string{v1alpha1.LabelNodeGroup: "p5"}, // anyone's to set
	}}
	err := do(t, apiWith(t, interceptor.Funcs{}, squatter), createPlaceholder{Pod: placeholderOf("p5", "mica-p5-0")})
	if err == nil || !strings.Contains(err.Error(), "another pod mica/mica-p5-0 has its name: delete that pod") {
		t.Errorf("error %v", err)
	}
}

func TestDelete(t *testing.T) {
	var preconditions *metav1.Preconditions
	answer := error(nil)
	c := apiWith(t, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
		options := (&client.DeleteOptions{}).ApplyOptions(opts)
		preconditions = options.Preconditions
		return answer
	}})
	action := deletePlaceholder{Pod: placeholderOf("p5", "a")}
	for name, test := range map[string]struct {
		answer error
		fails  bool
	}{
		"done":         {nil, false},
		"gone":         {apierrors.NewNotFound(corev1.Resource("pods"), "a"), false},
		"another pod":  {apierrors.NewConflict(corev1.Resource("pods"), "a", errors.New("UID")), false},
		"not allowed":  {apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("RBAC")), true},
		"no connected": {errors.New("connection refused"), true},
	} {
		t.Run(name, func(t *testing.T) {
			answer = test.answer
			if err := do(t, c, action); (err != nil) != test.fails {
				t.Errorf("error %v", err)
			}
			if preconditions == nil || preconditions.UID == nil || *preconditions.UID != action.Pod.UID {
				t.Errorf("preconditions %v: a pod that was made since could be deleted", preconditions)
			}
		})
	}
}

// An action that the API server always refuses stops no other of its kind or group.
func TestARefusedActionIsItsOwn(t *testing.T) {
	refused := func(o client.Object) error {
		if strings.HasPrefix(o.GetName(), "refused") {
			return apierrors.NewForbidden(corev1.Resource("pods"), o.GetName(), errors.New("not allowed"))
		}
		return nil
	}
	c := apiWith(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := refused(o); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := refused(o); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
	}, eksGroup("a", "a"), placeholderOf("a", "refused-to-delete"), placeholderOf("a", "old"))
	eks := &fakeEKS{id: "update"}
	result := &Result{Status: map[string]GroupStatus{}, Actions: []Action{
		deletePlaceholder{Pod: placeholderOf("a", "refused-to-delete")},
		deletePlaceholder{Pod: placeholderOf("a", "old")},
		createPlaceholder{Pod: placeholderOf("a", "refused-to-create")},
		createPlaceholder{Pod: placeholderOf("a", "new")},
		setDesired{Group: eksGroup("a", "a"), Entry: v1alpha1.InFlight{ID: IntentID, Target: 1}},
	}}
	if err := (&Executor{Client: c, Nodegroups: eks}).Do(t.Context(), result); !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := c.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, pod := range pods.Items {
		left = append(left, pod.Name)
	}
	if want := []string{"new", "refused-to-delete"}; !slices.Equal(left, want) {
		t.Errorf("pods %v, want %v", left, want)
	}
	if len(eks.calls) != 1 {
		t.Errorf("%d calls of EKS, want one", len(eks.calls))
	}
	got := result.Status["a"]
	if got.NotReady != v1alpha1.ReasonPlaceholderStays || !strings.Contains(got.Message, "placeholder refused-to-delete cannot be deleted: ") {
		t.Errorf("%s: %q", got.NotReady, got.Message)
	}
}

// The placeholder of a failure is not deleted before the failure is recorded. Other groups go on.
func TestOneGroupsFailureIsItsOwn(t *testing.T) {
	c := apiWith(t, interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
		return errors.New("no connection")
	}}, eksGroup("a", "a"), placeholderOf("a", "of-a"), placeholderOf("b", "of-b"))
	err := do(t, c,
		setBackoff{Group: eksGroup("a", "a"), Backoff: v1alpha1.Backoff{Reason: "Failed", Failures: 1}},
		deletePlaceholder{Pod: placeholderOf("a", "of-a")},
		deletePlaceholder{Pod: placeholderOf("b", "of-b")},
	)
	if err == nil || !strings.Contains(err.Error(), "no connection") {
		t.Errorf("error %v", err)
	}
	var pods corev1.PodList
	if err := c.List(context.Background(), &pods); err != nil || len(pods.Items) != 1 || pods.Items[0].Name != "of-a" {
		t.Errorf("left are %v, %v; want of-a, whose failure is not recorded yet", pods.Items, err)
	}
}

// fakeEKS records calls. look is called at each.
type fakeEKS struct {
	Nodegroups
	calls []v1alpha1.InFlight
	id    string
	err   error
	look  func()
}

func (f *fakeEKS) SetDesired(_ context.Context, _ *v1alpha1.GPUNodeGroup, intent v1alpha1.InFlight) (string, error) {
	f.calls = append(f.calls, intent)
	if f.look != nil {
		f.look()
	}
	return f.id, f.err
}

func TestSetDesiredRecordsTheIntentFirst(t *testing.T) {
	ctx := context.Background()
	group := eksGroup("p5", "p5")
	c := apiWith(t, interceptor.Funcs{}, group)
	inFlight := func() []v1alpha1.InFlight {
		var g v1alpha1.GPUNodeGroup
		if err := c.Get(ctx, types.NamespacedName{Name: "p5"}, &g); err != nil {
			t.Fatal(err)
		}
		return g.Status.InFlight
	}
	entry := v1alpha1.InFlight{ID: IntentID, Nodes: 1, Target: 3, Since: metav1.NewTime(epoch.Local())}
	named := entry
	named.ID = "update-1"
	eks := &fakeEKS{id: "update-1", look: func() {
		if diff := cmp.Diff([]v1alpha1.InFlight{entry}, inFlight()); diff != "" {
			t.Errorf("when EKS is called the intent is not recorded:\n%s", diff)
		}
	}}
	result := &Result{
		Actions: []Action{setDesired{Group: group, Entry: entry}},
		Status:  map[string]GroupStatus{"p5": {InFlight: []v1alpha1.InFlight{entry}}},
	}
	if err := (&Executor{Client: c, Nodegroups: eks}).Do(ctx, result); err != nil {
		t.Fatal(err)
	}
	for where, got := range map[string][]v1alpha1.InFlight{"the API server": inFlight(), "the result": result.Status["p5"].InFlight} {
		if diff := cmp.Diff([]v1alpha1.InFlight{named}, got); diff != "" {
			t.Errorf("%s has not the update:\n%s", where, diff)
		}
	}
	if len(eks.calls) != 1 {
		t.Errorf("%d calls", len(eks.calls))
	}
}

func TestSetDesiredKeepsTheIntent(t *testing.T) {
	entry := v1alpha1.InFlight{ID: IntentID, Nodes: 1, Target: 3, Since: metav1.NewTime(epoch.Local())}
	for name, eks := range map[string]*fakeEKS{
		"while another update runs": {},
		"where EKS does not answer": {err: errors.New("throttled")},
	} {
		t.Run(name, func(t *testing.T) {
			group := eksGroup("p5", "p5")
			c := apiWith(t, interceptor.Funcs{}, group)
			result := &Result{Actions: []Action{setDesired{Group: group, Entry: entry}}, Status: map[string]GroupStatus{}}
			if err := (&Executor{Client: c, Nodegroups: eks}).Do(context.Background(), result); !errors.Is(err, eks.err) {
				t.Fatal(err)
			}
			var g v1alpha1.GPUNodeGroup
			if err := c.Get(context.Background(), types.NamespacedName{Name: "p5"}, &g); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]v1alpha1.InFlight{entry}, g.Status.InFlight); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestProtect(t *testing.T) {
	const ours, disabled, until = v1alpha1.AnnotationProtected, v1alpha1.AnnotationScaleDownDisabled, v1alpha1.AnnotationHeldUntil
	const lease, cordoned = "2026-03-01T14:00:00Z", "cordoned 2026-03-01T12:00:00Z"
	for name, test := range map[string]struct {
		has  map[string]string
		For  string
		want map[string]string
	}{
		"a node":                     {nil, "claim", map[string]string{ours: "claim", disabled: "true", until: lease}},
		"for another reason":         {map[string]string{ours: "claim", disabled: "true", "x": "y"}, "headroom", map[string]string{ours: "headroom", disabled: "true", until: lease, "x": "y"}},
		"for longer":                 {map[string]string{ours: "claim", disabled: "true", until: "2026-03-01T12:30:00Z"}, "claim", map[string]string{ours: "claim", disabled: "true", until: lease}},
		"no more":                    {map[string]string{ours: "claim", disabled: "true", until: lease, "x": "y"}, "", map[string]string{"x": "y"}},
		"no more, but cordoned":      {map[string]string{ours: "claim", disabled: "true", until: lease, v1alpha1.AnnotationScaleIn: cordoned}, "", map[string]string{until: lease, v1alpha1.AnnotationScaleIn: cordoned}},
		"someone else's is theirs":   {map[string]string{disabled: "true"}, "claim", map[string]string{disabled: "true"}},
		"and is not taken away":      {map[string]string{disabled: "true"}, "", map[string]string{disabled: "true"}},
		"nothing to take away is ok": {nil, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := apiWith(t, interceptor.Funcs{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: test.has}})
			for range 2 {
				if err := do(t, c, protect{Node: "n", For: test.For, Now: epoch}, protect{Node: "gone", For: test.For, Now: epoch}); err != nil {
					t.Fatal(err)
				}
			}
			var node corev1.Node
			if err := c.Get(context.Background(), types.NamespacedName{Name: "n"}, &node); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, node.Annotations); diff != "" {
				t.Errorf("- is expected:\n%s", diff)
			}
		})
	}
}
