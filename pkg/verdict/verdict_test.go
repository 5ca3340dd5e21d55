package verdict

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/policy"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster has a policy, and counts the writes of its status.
func cluster(t *testing.T) (c client.Client, p *v1alpha1.GPUPolicy, writes *int) {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, v1alpha1.AddToScheme(scheme))
	must(t, corev1.AddToScheme(scheme))
	writes = new(int)
	c = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.GPUPolicy{}).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, of string, object client.Object, options ...client.SubResourceUpdateOption) error {
			*writes++
			return c.SubResource(of).Update(ctx, object, options...)
		},
	}).Build()
	p = &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1, UID: "u"}}
	must(t, c.Create(t.Context(), p))
	return c, p, writes
}

func report(t *testing.T, c client.Client, name string, policy *v1alpha1.NodePolicy) {
	t.Helper()
	must(t, c.Create(t.Context(), &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Policy: policy}))
}

func TestWhatNodesSayIsCounted(t *testing.T) {
	c, p, writes := cluster(t)
	w := New(c)
	for _, name := range []string{"a", "b", "without-plugin"} {
		must(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	report(t, c, "a", policy.Verdict(p, nil))
	report(t, c, "b", nil)
	report(t, c, "gone", policy.Verdict(p, nil)) // it has no Node
	expect := func(applied, pending int32, ready metav1.ConditionStatus) {
		t.Helper()
		must(t, w.write(t.Context()))
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		if s := p.Status; s.Applied != applied || s.Pending != pending || s.Refused != 0 || s.Conditions[0].Status != ready {
			t.Errorf("got %+v", s)
		}
	}
	expect(1, 1, metav1.ConditionUnknown)
	expect(1, 1, metav1.ConditionUnknown)
	if *writes != 1 {
		t.Errorf("the same status was written %d times", *writes)
	}
	b := &v1alpha1.GPUNode{}
	must(t, c.Get(t.Context(), client.ObjectKey{Name: "b"}, b))
	b.Policy = policy.Verdict(p, nil)
	must(t, c.Update(t.Context(), b))
	expect(2, 0, metav1.ConditionTrue)
}

// The API server sends each status to all nodes, so changes are counted together.
func TestChangesThatComeTogetherAreCountedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, writes := cluster(t)
		w := New(c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Start(ctx) }()
		for i := range 60 {
			name := string(rune('A' + i))
			must(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
			report(t, c, name, policy.Verdict(p, nil))
			w.mark()
			time.Sleep(time.Second / 2)
		}
		time.Sleep(2 * pause)
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		if *writes > 8 || p.Status.Applied != 60 {
			t.Errorf("%d writes, got %+v", *writes, p.Status)
		}
		cancel()
		must(t, <-done)
	})
}

func TestOwnWritesAndSignsOfLifeMatterNot(t *testing.T) {
	labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}
	for name, test := range map[string]struct {
		before, after any
		want          bool
	}{
		"a status":         {&v1alpha1.GPUPolicy{}, &v1alpha1.GPUPolicy{Status: v1alpha1.GPUPolicyStatus{Applied: 1}}, false},
		"a generation":     {&v1alpha1.GPUPolicy{}, &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Generation: 1}}, true},
		"a sign of life":   {&corev1.Node{}, &corev1.Node{Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}, false},
		"labels":           {&corev1.Node{}, labelled, true},
		"what a node says": {&v1alpha1.GPUNode{}, &v1alpha1.GPUNode{}, true},
	} {
		if got := matters(test.before, test.after); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
