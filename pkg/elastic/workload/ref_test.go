package workload

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParsesRefsAsKubectlTakesThem(t *testing.T) {
	for text, want := range map[string]Ref{
		"Deployment/vllm":                   {Kind: KindDeployment, Namespace: namespace, Name: "vllm"},
		"deploy/vllm":                       {Kind: KindDeployment, Namespace: namespace, Name: "vllm"},
		"DEPLOYMENTS/vllm":                  {Kind: KindDeployment, Namespace: namespace, Name: "vllm"},
		"sts/llama-3.1":                     {Kind: KindStatefulSet, Namespace: namespace, Name: "llama-3.1"},
		"StatefulSet/vllm":                  {Kind: KindStatefulSet, Namespace: namespace, Name: "vllm"},
		"rs/vllm-6c9f8d5b7":                 {Kind: KindReplicaSet, Namespace: namespace, Name: "vllm-6c9f8d5b7"},
		"Job/train":                         {Kind: KindJob, Namespace: namespace, Name: "train"},
		"jobs/train":                        {Kind: KindJob, Namespace: namespace, Name: "train"},
		"deployments.apps/vllm":             {Kind: KindDeployment, Namespace: namespace, Name: "vllm"},
		"deployment.v1.apps/vllm":           {Kind: KindDeployment, Namespace: namespace, Name: "vllm"},
		"Deployment.example.com/v":          {Kind: "Deployment", Group: "example.com", Namespace: namespace, Name: "v"},
		"Rollout.argoproj.io/vllm":          {Kind: "Rollout", Group: "argoproj.io", Namespace: namespace, Name: "vllm"},
		"rollout.v1alpha1.argoproj.io/vllm": {Kind: "rollout", Group: "argoproj.io", Namespace: namespace, Name: "vllm"},
		"ReplicaSets/singleton":             {Kind: KindReplicaSet, Namespace: namespace, Name: "singleton"},
	} {
		got, err := ParseRef(namespace, text)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestRefusesRefsInWords(t *testing.T) {
	for text, want := range map[string]string{
		"":                          `"" names no workload: write Kind/name, as in Deployment/vllm; kinds are Deployment, StatefulSet, ReplicaSet or Job`,
		"vllm":                      `"vllm" names no workload: write Kind/name`,
		"DaemonSet/vllm":            `"DaemonSet/vllm" names a workload of kind "DaemonSet", which is not known: use one of Deployment, StatefulSet, ReplicaSet or Job, or a kind with a scale subresource, with its group, as in LeaderWorkerSet.leaderworkerset.x-k8s.io/vllm`,
		"Roll-out.argoproj.io/vllm": `which is not a valid kind: write Kind.group/name`,
		"Rollout.Argo/vllm":         `which is not a valid kind`,
		"Rollout.argoproj.io/":      `no Rollout can have the name ""`,
		"/vllm":                     `"/vllm" names a workload of kind ""`,
		"Deployment/":               `"Deployment/": no Deployment can have the name "": `,
		"deploy/llm/vllm":           `no Deployment can have the name "llm/vllm": `,
		"Deployment/My LLM":         `no Deployment can have the name "My LLM": `,
	} {
		if _, err := ParseRef(namespace, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestEveryKindIsKnownAndOnlyJobsAreNotScaled(t *testing.T) {
	for _, k := range apiKinds {
		known, err := kindNamed(k.name)
		if err != nil || known.template(known.empty()) == nil {
			t.Errorf("%s: %v", k.name, err)
		}
		if got := (Ref{Kind: k.name}).Scalable(); got != (k.name != KindJob) {
			t.Errorf("%s is scalable: %v", k.name, got)
		}
	}
	if !(Ref{Kind: KindJob, Group: "batch.volcano.sh"}).Scalable() {
		t.Error("a Job of another group is not scaled")
	}
	if _, err := kindNamed("DaemonSet"); err == nil {
		t.Error("a DaemonSet is no workload here")
	}
}

// A kind of the same name in another group is a different one.
func TestControllersAreOfKnownGroups(t *testing.T) {
	for apiVersion, want := range map[string]bool{"apps/v1": true, "apps/v1beta2": true, "v1": false, "apps.kruise.io/v1": false, "a/b/c": false} {
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, OwnerReferences: owner(apiVersion, KindDeployment, "vllm")}}
		got, known := controllerOf(set)
		if known != want || want && got != (Ref{Kind: KindDeployment, Namespace: namespace, Name: "vllm"}) {
			t.Errorf("%s: got %+v, %v, want known %v", apiVersion, got, known, want)
		}
	}
}
