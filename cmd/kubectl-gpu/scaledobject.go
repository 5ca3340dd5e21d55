package main

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/scaledobject"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// scaling is the options of the command scaledobject.
type scaling struct {
	scaledobject.Options
	output, profilesFile string
	// ownSeries selects series by the workload's namespace and pods.
	ownSeries bool
}

const scaledObjectExample = `  kubectl gpu scaledobject deployment/llm --profile realtime --model meta-llama/Llama-3.1-8B-Instruct | kubectl apply -f -
  kubectl gpu scaledobject deployment/prefill --profile prefill --max 4
  kubectl gpu scaledobject deployment/llm --profile batch --model llm --min 0 --demand-query 'sum(gateway_queue_size{model="llm"})'
  kubectl gpu scaledobject leaderworkerset/llm --profile realtime --model llm --max 4`

// newScaledObjectCommand connects to the cluster after it has checked the command line, except for kinds that
// only the cluster knows.
func newScaledObjectCommand(config clientcmd.ClientConfig, connect connecter) *cobra.Command {
	var s scaling
	command := &cobra.Command{
		Use:     "scaledobject KIND/NAME",
		Short:   "Print the ScaledObject by which KEDA scales a workload with GPUs",
		Example: scaledObjectExample,
		RunE: func(command *cobra.Command, args []string) error {
			return s.run(command, config, connect, args)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&s.output, "output", "o", "yaml", "how to print: yaml or json")
	flags.StringVar(&s.Profile, "profile", "", "the kind of workload: realtime, batch, conversational, prefill or decode")
	flags.StringVar(&s.profilesFile, "profiles", "", "the file with the controller's profiles, if it has its own")
	flags.Int32Var(&s.Min, "min", 1, "the smallest number of replicas")
	flags.Int32Var(&s.Max, "max", 10, "the largest number of replicas")
	flags.Int32Var(&s.Warm, "warm", -1, "the number of loaded replicas that wait behind the readiness gate mica.gpu/serving of their pods; -1: the profile's number")
	flags.StringVar(&s.Serving.Model, "model", "", "the name of the served model in the engine's metrics")
	flags.StringArrayVar(&s.Serving.Matchers, "match", nil, `a label that selects the workload's metrics, such as pod=~"llm-.*"; can be repeated`)
	flags.BoolVar(&s.ownSeries, "own-series", true, "select only metrics with the workload's namespace and pods in the labels namespace and pod; false: use --model and --match alone")
	flags.StringVar(&s.Serving.Engine, "engine", "vllm", "the engine that serves the model and reports its metrics: "+strings.Join(scaledobject.Engines(), ", "))
	flags.BoolVar(&s.Serving.Underscores, "underscores", false, "Prometheus has underscores in place of colons in the engine's metrics, such as vllm_num_requests_waiting")
	flags.StringVar(&s.Demand, "demand-query", "", "PromQL that counts waiting requests while no replica runs; required with --min 0")
	flags.StringVar(&s.Prometheus.Address, "prometheus", "http://prometheus.monitoring:9090", "the URL at which KEDA asks Prometheus")
	flags.StringVar(&s.Prometheus.Region, "prometheus-region", "", "the AWS region of a managed Prometheus: KEDA signs its requests (SigV4) with its own identity")
	flags.StringArrayVar(&s.Prometheus.Headers, "prometheus-header", nil, "a header for Prometheus, such as X-Scope-OrgID=team-a for a tenant; can be repeated")
	flags.StringVar(&s.Prometheus.Secret, "prometheus-secret", "", "the Secret in the workload's namespace with a bearer token for Prometheus in the key token")
	flags.StringVar(&s.Scaler.Address, "scaler-address", "mica-controller-keda.mica.svc:9443", "host:port of Mica's controller")
	flags.StringVar(&s.Scaler.Secret, "tls-secret", "", "the Secret in the workload's namespace with ca.crt of the controller; empty: no TLS")
	flags.BoolVar(&s.Scaler.ClientCertificate, "client-certificate", false, "authenticate at the controller with tls.crt and tls.key of that Secret")
	flags.StringVar(&s.Scaler.Cluster, "cluster-trigger-authentication", "", "the ClusterTriggerAuthentication for the controller, instead of a Secret")
	flags.BoolVar(&s.NoTolerance, "no-scale-in-threshold", false, "leave out the autoscaler's tolerance, which Kubernetes 1.34 does not have")
	return command
}

func (s *scaling) run(command *cobra.Command, config clientcmd.ClientConfig, connect connecter, args []string) error {
	namespace, chosen, err := namespaceOf(config)
	if err != nil {
		return err
	}
	cluster := sync.OnceValues(func() (client.WithWatch, error) { return connect(config) })
	if s.Target, err = scaledTarget(args, cluster); err != nil {
		return err
	}
	named := s.Target
	named.Namespace = namespace
	// The objects have a namespace only if the user named one. Otherwise kubectl apply uses the same default.
	if chosen {
		s.Target = named
	}
	if s.Serving.AnyPod = !s.ownSeries; s.ownSeries {
		s.Serving.Namespace = namespace
	}
	// Find mistakes in the command line before connecting.
	if err := s.check(); err != nil {
		return err
	}
	connected, err := cluster()
	if err != nil {
		return err
	}
	read, err := readTarget(command, connected, named)
	if err != nil {
		return err
	}
	if err := checkPods(command, connected, named, read.pods); err != nil {
		return err
	}
	s.Selector = read.selector
	objects, err := scaledobject.Build(s.Options)
	if err != nil {
		return err
	}
	if called := &objects.ScaledObject.Spec.ScaleTargetRef; read.kind != "" {
		called.APIVersion, called.Kind = read.apiVersion, read.kind
	}
	if err := s.notePartitions(command, connected, named, read.pods); err != nil {
		return err
	}
	if len(objects.Missing) > 0 {
		command.PrintErrf("note: %s has no metric for %s: %s is scaled by the other signals of profile %s.\n", s.Serving.Engine, strings.Join(objects.Missing, ", "), s.Target, s.Profile)
	}
	if s.output == "json" {
		return objects.JSON(command.OutOrStdout())
	}
	return objects.YAML(command.OutOrStdout())
}

// check loads the profiles and checks the options without the cluster.
func (s *scaling) check() error {
	if s.output != "yaml" && s.output != "json" {
		return fmt.Errorf("unknown output %q: use yaml or json", s.output)
	}
	var content []byte
	var err error
	if s.profilesFile != "" {
		if content, err = os.ReadFile(s.profilesFile); err != nil {
			return fmt.Errorf("read the profiles: %w", err)
		}
	}
	if s.Profiles, err = profile.Load(content); err != nil {
		return fmt.Errorf("file %s with profiles: %w", s.profilesFile, err)
	}
	if s.Profile == "" {
		return fmt.Errorf("the profile of %s is missing: give --profile with one of %s", s.Target, strings.Join(s.Profiles.Names(), ", "))
	}
	_, err = scaledobject.Build(s.Options)
	return err
}

// checkPods refuses a workload without devices, which would never scale, and warns of shared claims.
func checkPods(command *cobra.Command, reader client.Reader, target workload.Ref, pods []corev1.PodSpec) error {
	asking := len(pods) == 0 // unknown
	for _, pod := range pods {
		asks, err := asksForDevices(command.Context(), reader, pod)
		if err != nil {
			return err
		}
		asking = asking || asks
	}
	if !asking {
		return fmt.Errorf("the pods of %s ask for no devices, by a claim or an extended resource of a DeviceClass: "+
			"give its pod template resourceClaims, as in the examples, or scale it by another trigger of KEDA", target)
	}
	for _, pod := range pods {
		for _, claim := range pod.ResourceClaims {
			if claim.ResourceClaimName != nil {
				command.PrintErrf("note: all replicas of %s share the devices of ResourceClaim %s: more replicas get no more of them. With a resourceClaimTemplateName each has its own.\n",
					target, *claim.ResourceClaimName)
			}
		}
	}
	return nil
}
