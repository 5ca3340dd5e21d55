package main

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/scaledobject"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// scaling is the options of scaledobject.
type scaling struct {
	output string
	// profiles is a file, profile the name of one.
	profiles, profile string
	min, max, warm    int32
	serving           scaledobject.Serving
	demand            string
	ahead, season     string
	schedules         []string
	timeZone          string
	queue             scaledobject.Queue
	scaler            scaledobject.Scaler
	prometheus        scaledobject.Prometheus
	throughController bool
	noThreshold       bool
	// ownSeries takes only series with the workload's namespace and pods.
	ownSeries bool
}

const scaledObjectExample = `  kubectl gpu scaledobject deployment/llm --profile realtime --model meta-llama/Llama-3.1-8B-Instruct | kubectl apply -f -
  kubectl gpu scaledobject deployment/prefill --profile prefill --max 4
  kubectl gpu scaledobject deployment/llm --profile batch --model llm --min 0 --demand-query 'sum(gateway_queue_size{model="llm"})'
  kubectl gpu scaledobject deployment/llm --profile realtime --model llm --ahead 5m --schedule '0 8 * * 1-5 for 12h=4' --timezone Asia/Seoul
  kubectl gpu scaledobject leaderworkerset/llm --profile realtime --model llm --max 4
  kubectl gpu scaledobject deployment/render --profile batch --min 0 --queue redis --queue-set address=redis:6379 --queue-set listName=jobs --queue-messages 5`

// newScaledObjectCommand connects only once the command line is known to be right, as far as nobody
// but the cluster knows the workload's kind.
func newScaledObjectCommand(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.WithWatch, error)) *cobra.Command {
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
	flags.StringVar(&s.profile, "profile", "", "the kind of workload: realtime, batch, conversational, prefill or decode")
	flags.StringVar(&s.profiles, "profiles", "", "the file with the profiles that the controller was given in place of its own")
	flags.Int32Var(&s.min, "min", 1, "the smallest number of replicas")
	flags.Int32Var(&s.max, "max", 10, "the largest number of replicas")
	flags.Int32Var(&s.warm, "warm", -1, "the number of replicas that wait, loaded, behind the readiness gate mica.gpu/serving of their pods; -1: as many as the profile says")
	flags.StringVar(&s.serving.Model, "model", "", "the name under which the model is served, as the engine's metrics have it")
	flags.StringArrayVar(&s.serving.Matchers, "match", nil, `a label by which the workload's metrics are selected, such as pod=~"llm-.*"; can be repeated`)
	flags.BoolVar(&s.ownSeries, "own-series", true, "select only metrics with the workload's namespace and pods in the labels namespace and pod; false: by --model and --match alone")
	flags.StringVar(&s.serving.Engine, "engine", "vllm", "the engine that serves the model, by whose metrics it is scaled: "+strings.Join(scaledobject.Engines(), ", "))
	flags.BoolVar(&s.serving.Underscores, "underscores", false, "Prometheus has the engine's metrics with underscores for colons, as vllm_num_requests_waiting")
	flags.StringVar(&s.demand, "demand-query", "", "PromQL that counts what waits while no replica runs; needed with --min 0")
	flags.StringVar(&s.ahead, "ahead", "", "how far in advance replicas are asked for by what the last season needed, such as 5m; empty: not at all")
	flags.StringVar(&s.season, "season", "", "what comes again, for --ahead: 7d, which is the default, or 1d")
	flags.StringArrayVar(&s.schedules, "schedule", nil, `at least so many replicas at times in cron, as "0 8 * * 1-5 for 12h=4" or "0 8 * * 1-5 to 0 20 * * 1-5=4", an hour without an end; can be repeated`)
	flags.StringVar(&s.timeZone, "timezone", "", "the time zone of --schedule, a name of the tz database such as Asia/Seoul; empty: UTC")
	addQueue(flags, &s.queue)
	flags.StringVar(&s.prometheus.Address, "prometheus", "http://prometheus.monitoring:9090", "the URL at which KEDA asks Prometheus")
	flags.StringVar(&s.prometheus.Region, "prometheus-region", "", "the AWS region of a managed Prometheus: KEDA signs its requests (SigV4) with its own identity")
	flags.StringArrayVar(&s.prometheus.Headers, "prometheus-header", nil, "a header for Prometheus, such as X-Scope-OrgID=team-a for a tenant; can be repeated")
	flags.StringVar(&s.prometheus.Secret, "prometheus-secret", "", "the Secret in the workload's namespace with a bearer token for Prometheus in the key token")
	flags.BoolVar(&s.throughController, "through-controller", false, "have Mica's controller ask Prometheus, by a trigger for each signal, in place of KEDA")
	flags.StringVar(&s.scaler.Address, "scaler-address", "mica-controller-keda.mica.svc:9443", "host:port of Mica's controller")
	flags.StringVar(&s.scaler.Secret, "tls-secret", "", "the Secret in the workload's namespace with ca.crt of the controller; empty: no TLS")
	flags.BoolVar(&s.scaler.ClientCertificate, "client-certificate", false, "show the controller tls.crt and tls.key of that Secret")
	flags.StringVar(&s.scaler.Cluster, "cluster-trigger-authentication", "", "the ClusterTriggerAuthentication that says how to reach the controller, in place of a Secret")
	flags.BoolVar(&s.noThreshold, "no-scale-in-threshold", false, "leave out the autoscaler's tolerance, which Kubernetes 1.34 does not have")
	return command
}

func addQueue(flags *pflag.FlagSet, q *scaledobject.Queue) {
	flags.StringVar(&q.Kind, "queue", "", "the queue whose messages are the demand, counted by KEDA's own scaler: "+strings.Join(scaledobject.Queues(), ", "))
	flags.StringArrayVar(&q.Settings, "queue-set", nil, "a setting of that scaler, such as address=redis:6379; can be repeated")
	flags.Int32Var(&q.Messages, "queue-messages", 10, "how many messages one replica works off")
	flags.StringVar(&q.Authentication, "queue-authentication", "", "the TriggerAuthentication in the workload's namespace with which KEDA reads the queue")
}

func (s *scaling) run(command *cobra.Command, config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.WithWatch, error), args []string) error {
	namespace, chosen, err := namespaceOf(config)
	if err != nil {
		return err
	}
	cluster := sync.OnceValues(func() (client.WithWatch, error) { return connect(config) })
	target, err := scaledTarget(args, cluster)
	if err != nil {
		return err
	}
	// The objects have a namespace only where the user has named one: what is printed is then
	// applied with the same default as here.
	if chosen {
		target.Namespace = namespace
	}
	if s.serving.AnyPod = !s.ownSeries; s.ownSeries {
		s.serving.Namespace = namespace
	}
	// What is wrong with the command line is told without the cluster.
	if _, err := s.build(target, ""); err != nil {
		return err
	}
	named := target
	named.Namespace = namespace
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
	objects, err := s.build(target, read.selector)
	if err != nil {
		return err
	}
	if called := &objects.ScaledObject.Spec.ScaleTargetRef; read.kind != "" {
		called.APIVersion, called.Kind = read.apiVersion, read.kind
	}
	if err := s.notePartitions(command, connected, named, read.pods); err != nil {
		return err
	}
	if len(objects.Untold) > 0 {
		command.PrintErrf("note: %s tells nothing of %s: %s is scaled by the other signals of profile %s.\n", s.serving.Engine, strings.Join(objects.Untold, ", "), target, s.profile)
	}
	if s.output == "json" {
		return objects.JSON(command.OutOrStdout())
	}
	return objects.YAML(command.OutOrStdout())
}

func (s *scaling) build(target workload.Ref, selector string) (scaledobject.Objects, error) {
	if s.output != "yaml" && s.output != "json" {
		return scaledobject.Objects{}, fmt.Errorf("scaledobject prints as yaml or json, and was given -o %q", s.output)
	}
	profiles, err := s.load()
	if err != nil {
		return scaledobject.Objects{}, err
	}
	if s.profile == "" {
		return scaledobject.Objects{}, fmt.Errorf("what kind of workload %s is decides its thresholds: give --profile with one of %s", target, strings.Join(profiles.Names(), ", "))
	}
	return scaledobject.Build(scaledobject.Options{
		Target:            target,
		Profiles:          profiles,
		Profile:           s.profile,
		Min:               s.min,
		Max:               s.max,
		Warm:              s.warm,
		Serving:           s.serving,
		Demand:            s.demand,
		Ahead:             s.ahead,
		Season:            s.season,
		Schedules:         s.schedules,
		TimeZone:          s.timeZone,
		Queue:             s.queue,
		Scaler:            s.scaler,
		Selector:          selector,
		Prometheus:        s.prometheus,
		ThroughController: s.throughController,
		NoTolerance:       s.noThreshold,
	})
}

func (s *scaling) load() (profile.Set, error) {
	if s.profiles == "" {
		return profile.Load(nil)
	}
	content, err := os.ReadFile(s.profiles)
	if err != nil {
		return profile.Set{}, fmt.Errorf("read the profiles: %w", err)
	}
	set, err := profile.Load(content)
	if err != nil {
		return profile.Set{}, fmt.Errorf("the file with profiles %s cannot be used: %w", s.profiles, err)
	}
	return set, nil
}

// checkPods refuses what could be applied and would then never do anything, and says on the error
// output what may not be what was meant.
func checkPods(command *cobra.Command, reader client.Reader, target workload.Ref, pods []corev1.PodSpec) error {
	asking := len(pods) == 0 // then nobody knows
	for _, pod := range pods {
		asks, err := asksForDevices(command.Context(), reader, pod)
		if err != nil {
			return err
		}
		asking = asking || asks
	}
	if !asking {
		return fmt.Errorf("the pods of %s ask for no devices, by a claim or by an extended resource of a DeviceClass, and so Mica knows nothing of them: "+
			"give its pod template resourceClaims, as the examples have them, or scale it by another trigger of KEDA", target)
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
