package scaledobject

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

// Queue is one whose messages KEDA counts by a scaler of its own.
type Queue struct {
	// Kind is one of Queues; empty where there is none.
	Kind string
	// Settings are key=value, as KEDA's scaler has them in its metadata.
	Settings []string
	// Messages are as many as there are for each replica.
	Messages int32
	// Authentication names a TriggerAuthentication in the target's namespace; empty: the scaler
	// needs none, or is given what it usually has.
	Authentication string
}

// queueScaler is one of KEDA's.
type queueScaler struct {
	// keda is the type of the trigger.
	keda string
	// required has of each setting that has to be there all its spellings.
	required [][]string
	optional []string
	// perReplica is the setting for the messages of a replica. The formula divides by them as well;
	// Kafka's scaler limits its value to so many for each partition.
	perReplica string
	// identity is the pod identity by which KEDA asks where nobody names an authentication.
	identity string
}

// queueScalers are by the names that users give. Settings are those of KEDA 2.21 (pkg/scalers,
// redis_scaler.go, aws_sqs_queue_scaler.go and kafka_scaler.go), without credentials: these belong
// into a TriggerAuthentication.
var queueScalers = map[string]queueScaler{
	"redis": {
		keda: "redis", perReplica: "listLength",
		required: [][]string{{"address", "host"}, {"listName"}},
		optional: []string{"port", "databaseIndex", "enableTLS", "unsafeSsl"},
	},
	"sqs": {
		keda: "aws-sqs-queue", perReplica: "queueLength", identity: "aws",
		required: [][]string{{"queueURL"}, {"awsRegion"}},
		optional: []string{"awsEndpoint", "scaleOnInFlight", "scaleOnDelayed"},
	},
	"kafka": {
		keda: "kafka", perReplica: "lagThreshold",
		required: [][]string{{"bootstrapServers"}, {"consumerGroup"}, {"topic"}},
		optional: []string{
			"partitionLimitation", "offsetResetPolicy", "allowIdleConsumers", "excludePersistentLag", "scaleToZeroOnInvalidOffset",
			"limitToPartitionsWithLag", "ensureEvenDistributionOfPartitions", "version", "tls", "unsafeSsl", "sasl", "saslTokenProvider", "awsRegion",
		},
	},
}

// fromEnv is the end of a setting whose value KEDA reads from the environment of the target's pods.
const fromEnv = "FromEnv"

// triggerQueue is its name in the formula.
const triggerQueue = "queue"

// Queues are the kinds that there are.
func Queues() []string { return slices.Sorted(maps.Keys(queueScalers)) }

// there tells that messages are counted.
func (q Queue) there() bool { return q.Kind != "" }

// validate refuses what KEDA would refuse, and what could not be meant.
func (q Queue) validate(o Options, p profile.Profile) error {
	if !q.there() {
		if len(q.Settings) > 0 || q.Authentication != "" {
			return fmt.Errorf("settings of a queue do nothing without its kind: name one of %s", strings.Join(Queues(), ", "))
		}
		return nil
	}
	_, settings, err := q.read()
	if err != nil {
		return err
	}
	for _, required := range queueScalers[q.Kind].required {
		if !slices.ContainsFunc(required, func(key string) bool { return settings[key] != "" || settings[key+fromEnv] != "" }) {
			return fmt.Errorf("of the queue, %s is missing: KEDA's scaler %s needs it, as %s=VALUE", strings.Join(required, " or "), q.Kind, required[0])
		}
	}
	return q.agrees(o, p)
}

// agrees refuses what does not go with a queue.
func (q Queue) agrees(o Options, p profile.Profile) error {
	i := slices.IndexFunc(p.Triggers, func(signal string) bool { return !profile.OfDevices(signal) })
	switch {
	case q.Messages < 1:
		return fmt.Errorf("%d messages for each replica cannot be: give at least 1, as many as one replica works off while a user may wait", q.Messages)
	case i >= 0:
		return fmt.Errorf("profile %s scales by %s of the server, which tells nothing while no replica runs; the queue tells what there is to do: choose a profile of devices alone, such as batch", p.Name, p.Triggers[i])
	case o.Demand != "":
		return errors.New("both the queue and the query for what waits tell of demand: leave the query out")
	case o.Ahead != "" || o.Season != "":
		return errors.New("what the last season needed is asked of Prometheus, which knows nothing of the queue: give schedules in its place")
	case o.ThroughController:
		return errors.New("the controller asks Prometheus, and no queue: let KEDA count the messages, and leave out that the controller asks")
	case max(o.Warm, 0) > 0 || o.Warm < 0 && p.Warm > 0:
		return errors.New("the gates of warm replicas open by load that the controller sees, and KEDA alone sees the queue: have none wait")
	}
	return nil
}

// read gives the scaler and its settings.
func (q Queue) read() (queueScaler, map[string]string, error) {
	scaler, known := queueScalers[q.Kind]
	if !known {
		return queueScaler{}, nil, fmt.Errorf("queue %q is unknown: name one of %s, or write a trigger of KEDA's into the printed object", q.Kind, strings.Join(Queues(), ", "))
	}
	allowed := append(slices.Concat(scaler.required...), scaler.optional...)
	settings := map[string]string{scaler.perReplica: strconv.Itoa(int(q.Messages))}
	for _, setting := range q.Settings {
		key, value, found := strings.Cut(setting, "=")
		_, twice := settings[key]
		switch {
		case !found || value == "":
			return queueScaler{}, nil, fmt.Errorf("%q is no setting of a queue: write key=value", setting)
		case key == scaler.perReplica:
			return queueScaler{}, nil, fmt.Errorf("%s is the number of messages for each replica, which has a flag of its own", key)
		case !slices.Contains(allowed, strings.TrimSuffix(key, fromEnv)):
			slices.Sort(allowed)
			return queueScaler{}, nil, fmt.Errorf("setting %s of the queue is unknown: %s has %s; credentials belong into a TriggerAuthentication", key, q.Kind, strings.Join(allowed, ", "))
		case twice:
			return queueScaler{}, nil, fmt.Errorf("setting %s of the queue is given twice", key)
		}
		settings[key] = value
	}
	return scaler, settings, nil
}

// queueTriggers are KEDA's own for the queue and two of the controller. The value of the first is
// messages, which the formula makes replicas of.
func (o Options) queueTriggers(p profile.Profile) ([]Trigger, error) {
	scaler, settings, err := o.Queue.read()
	if err != nil {
		return nil, err
	}
	queue := Trigger{Type: scaler.keda, Name: triggerQueue, UseCachedMetrics: true, Metadata: settings}
	if name := o.queueAuthentication(); name != "" {
		queue.AuthenticationRef = &AuthenticationRef{Kind: "TriggerAuthentication", Name: name}
	}
	return append([]Trigger{queue}, o.ownTriggers(p)...), nil
}

// queueAuthentication is the name of the one that KEDA reads the queue with; empty: none.
func (o Options) queueAuthentication() string {
	if o.Queue.Authentication != "" || queueScalers[o.Queue.Kind].identity == "" {
		return o.Queue.Authentication
	}
	return o.Target.Name + "-queue"
}

// queueIdentity is what has to be applied for the queue; nil: nothing.
func (o Options) queueIdentity() *TriggerAuthentication {
	identity := queueScalers[o.Queue.Kind].identity
	if identity == "" || o.Queue.Authentication != "" {
		return nil
	}
	a := newAuthentication(o.queueAuthentication(), o.Target.Namespace)
	a.Spec.PodIdentity = &PodIdentity{Provider: identity}
	return a
}
