package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
	"github.com/mica-gpu/mica/test/fixture"
)

// facility is an API server that reports these facts about itself.
type facility struct {
	err   error
	gates map[string]bool
}

func (f facility) Version(context.Context) (string, error) { return "v1.37.1", f.err }
func (f facility) Resources(_ context.Context, groupVersion string) ([]string, error) {
	return map[string][]string{
		"resource.k8s.io/v1": {"resourceslices"},
		"mica.gpu/v1alpha1":  {"gpupolicies", "gpunodes", "gpunodegroups", "gpuheadrooms", "gpubudgets"},
	}[groupVersion], nil
}
func (f facility) Schemas(context.Context) ([]byte, error)        { return nil, nil }
func (f facility) Gates(context.Context) (map[string]bool, error) { return f.gates, nil }
func (f facility) Now() time.Time                                 { return now }

// examined runs the command on a cluster with these objects. The user may not list the forbidden kinds.
func examined(t *testing.T, server discoverer, forbidden func(client.ObjectList) bool, objects []client.Object, arguments ...string) (string, error) {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if forbidden(list) {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no right"))
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	config := clientcmd.NewDefaultClientConfig(clientcmdapi.Config{}, nil)
	command := newDoctorCommand(config, func(clientcmd.ClientConfig) (*survey, error) { return &survey{Reader: reader, server: server}, nil })
	var out bytes.Buffer
	command.SetArgs(append([]string{}, arguments...))
	command.SetOut(&out)
	command.SetErr(io.Discard)
	err = command.ExecuteContext(t.Context())
	return out.String(), err
}

func nothing(client.ObjectList) bool { return false }

// troubled has a mistake in each kind that the survey reads.
func troubled() []client.Object {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{"k8s.amazonaws.com/accelerator": "h100"}, Annotations: map[string]string{
		v1alpha1.AnnotationProtected: "use", v1alpha1.AnnotationScaleIn: "cordoned 2020-01-01T10:00:00Z", v1alpha1.AnnotationHeldUntil: "2020-01-01T12:00:00Z",
	}}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1-a"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.nvidia.com", NodeName: ptr.To("gpu-1"), Pool: resourceapi.ResourcePool{Name: "gpu-1", ResourceSliceCount: 1}, Devices: []resourceapi.Device{{Name: "gpu-0"}},
	}}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "one"}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{Count: 1}}}
	burnIn := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "burn-in"}}
	burnIn.Spec.Template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("one")}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "old"}}
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("1"), "nvidia.com/mig-1g.10gb": resource.MustParse("1")}}}}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}, Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: ptr.To("nvidia.com/gpu")}}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "gpus"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("1")}}}
	everywhere := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: &resourceapi.DeviceTaintSelector{}}}
	policy := &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: "mica"}}
	policy.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRefused}}
	return []client.Object{&v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "h100"}}, node, slice, template, burnIn, pod, class, quota, everywhere, policy}
}

func TestDoctorReadsWhatItLooksAt(t *testing.T) {
	out, err := examined(t, facility{gates: map[string]bool{"DRADeviceTaints": false}}, nothing, troubled())
	if exitCode(err) != exitNo {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	for _, check := range []string{"accelerator-label", "plugin-installed", "daemonset-claims", "taint-rule-selector", "feature-gates", "hold-expired", "conditions", "device-plugin-resources", "device-plugin-quota"} {
		if !strings.Contains(out, "("+check+")") {
			t.Errorf("%s found nothing:\n%s", check, out)
		}
	}
	if strings.Contains(out, "Not seen") {
		t.Errorf("something was not read:\n%s", out)
	}
	// The survey keeps the controller's annotations of nodes.
	if want := "The controller's protection and cordon of the node expired at 2020-01-01T12:00:00Z."; !strings.Contains(out, want) {
		t.Errorf("want %q in\n%s", want, out)
	}
}

func TestDoctorSaysWhatItMayNotSee(t *testing.T) {
	noPods := func(list client.ObjectList) bool { _, is := list.(*corev1.PodList); return is }
	out, err := examined(t, facility{}, noPods, nil, "-o", "yaml")
	if exitCode(err) != exitNo || !strings.Contains(out, "kind: pods") || !strings.Contains(out, "you may not read them") {
		t.Errorf("exit code %d:\n%s", exitCode(err), out)
	}
}

func TestDoctorThatCannotLook(t *testing.T) {
	for name, tc := range map[string]struct {
		server    discoverer
		arguments []string
		want      []string
	}{
		"no API server": {facility{err: errors.New("connection refused")}, nil, []string{"API server", "connection refused"}},
		"a format":      {facility{}, []string{"-o", "wide"}, []string{"wide", "table, json, yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := examined(t, tc.server, nothing, nil, tc.arguments...)
			fixture.Sentence(t, err, tc.want...)
			if exitCode(err) != exitFailed {
				t.Errorf("exit code %d", exitCode(err))
			}
		})
	}
}

func TestWhyAKindWasNotRead(t *testing.T) {
	kind := schema.GroupResource{Resource: "pods"}
	for want, err := range map[string]error{
		"":                              nil,
		"you may not read them":         apierrors.NewForbidden(kind, "", errors.New("x")),
		"they changed too fast":         apierrors.NewResourceExpired("old"),
		"the server is on fire":         errors.New("the server is on fire"),
		strings.Repeat("x", 150) + "xx": errors.New(strings.Repeat("x", 5000)),
	} {
		f := &doctor.Facts{Unseen: map[doctor.Kind]string{}}
		note(f, doctor.KindPods, err)
		if got := f.Unseen[doctor.KindPods]; !strings.Contains(got, want) || len(got) > 200 {
			t.Errorf("%v: got %q", err, got)
		}
	}
	f := &doctor.Facts{Unseen: map[doctor.Kind]string{}}
	note(f, doctor.KindPods, &meta.NoKindMatchError{})
	note(f, doctor.KindPods, apierrors.NewNotFound(kind, "a"))
	if len(f.Unseen) > 0 {
		t.Errorf("what is not served is not unseen: %v", f.Unseen)
	}
}

// newRemote reads versions, resources, gates and the time from an API server.
func TestAnAPIServerIsAsked(t *testing.T) {
	answers := map[string]string{
		"/version":                 `{"gitVersion": "v1.36.0-eks-1"}`,
		"/apis/resource.k8s.io/v1": `{"resources": [{"name": "resourceslices"}, {"name": "deviceclasses"}]}`,
		"/metrics":                 "# HELP x\nx 1\nkubernetes_feature_enabled{name=\"A\",stage=\"BETA\"} 1\nkubernetes_feature_enabled{name=\"B\",stage=\"\"} 0\nother 1\nkubernetes_feature_enabled{name=\"C\",stage=\"\"} 1\n",
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", now.Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		if answer, known := answers[r.URL.Path]; known {
			_, _ = io.WriteString(w, answer)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	connected, err := newRemote(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	version, err := connected.Version(t.Context())
	if err != nil || version != "v1.36.0-eks-1" || !connected.Now().Equal(now) {
		t.Errorf("got %q at %s, %v", version, connected.Now(), err)
	}
	resources, err := connected.Resources(t.Context(), "resource.k8s.io/v1")
	if err != nil || len(resources) != 2 {
		t.Errorf("got %v, %v", resources, err)
	}
	if resources, err := connected.Resources(t.Context(), "mica.gpu/v1alpha1"); err != nil || len(resources) != 0 {
		t.Errorf("got %v, %v of a group that is not served", resources, err)
	}
	gates, err := connected.Gates(t.Context())
	if want := map[string]bool{"A": true, "B": false}; err != nil || !reflect.DeepEqual(gates, want) {
		t.Errorf("got %v, %v", gates, err)
	}
}
