package scaledobject

import (
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// queued is a workload that works off a queue of five messages for each replica.
func queued(kind string, settings ...string) func(*Options) {
	return func(o *Options) {
		o.Profile, o.Min = "batch", 0
		o.Queue = Queue{Kind: kind, Settings: settings, Messages: 5}
	}
}

var (
	byRedis = queued("redis", "address=redis.default:6379", "listName=jobs")
	bySQS   = queued("sqs", "queueURL=https://sqs.eu-west-1.amazonaws.com/123456789012/jobs", "awsRegion=eu-west-1")
	byKafka = queued("kafka", "bootstrapServers=kafka.default:9092", "consumerGroup=render", "topic=jobs")
)

func TestAQueueIsCappedByTheDevices(t *testing.T) {
	for name, test := range map[string]struct {
		change []func(*Options)
		keda   string
	}{
		"queue-redis": {[]func(*Options){byRedis}, "redis"},
		"queue-sqs":   {[]func(*Options){bySQS, mutual}, "aws-sqs-queue"},
		"queue-kafka": {[]func(*Options){byKafka, func(o *Options) { o.Queue.Authentication = "kafka" }}, "kafka"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := build(t, test.change...)
			spec := objects.ScaledObject.Spec
			if got := spec.Triggers[0].Type; got != test.keda {
				t.Errorf("the queue is read by %s, want %s", got, test.keda)
			}
			if got := spec.Advanced.ScalingModifiers.Formula; got != "min([max([(queue ?? (pods * 5)) / 5, held ?? pods]), possible ?? 8])" {
				t.Errorf("the formula is %s", got)
			}
			var out strings.Builder
			if err := objects.YAML(&out); err != nil {
				t.Fatal(err)
			}
			fixture.Golden(t, name+".yaml", out.String())
		})
	}
}

// Of an authentication that a user has, nothing is printed.
func TestASQSQueueIsReadAsItsReaderWants(t *testing.T) {
	for name, want := range map[string]int{"": 1, "mine": 0} {
		objects := build(t, bySQS, func(o *Options) { o.Queue.Authentication = name })
		if got := len(objects.Authentications); got != want {
			t.Errorf("with authentication %q, %d are printed, want %d", name, got, want)
		}
		if ref := objects.ScaledObject.Spec.Triggers[0].AuthenticationRef; ref == nil || name != "" && ref.Name != name {
			t.Errorf("with authentication %q, the trigger has %v", name, ref)
		}
	}
}

func TestAQueueThatCannotBeIsRefusedInWords(t *testing.T) {
	setting := func(settings ...string) func(*Options) { return queued("redis", settings...) }
	for name, test := range map[string]struct {
		change []func(*Options)
		want   []string
	}{
		"another queue":        {[]func(*Options){queued("nats")}, []string{`"nats"`, "kafka, redis, sqs"}},
		"no settings":          {[]func(*Options){setting()}, []string{"address or host is missing", "address=VALUE"}},
		"no list":              {[]func(*Options){setting("host=redis")}, []string{"listName is missing"}},
		"half a setting":       {[]func(*Options){setting("address")}, []string{`"address"`, "key=value"}},
		"an empty setting":     {[]func(*Options){setting("address=")}, []string{`"address="`, "key=value"}},
		"a misspelt setting":   {[]func(*Options){setting("adress=redis:6379", "listName=jobs")}, []string{"adress", "address, databaseIndex"}},
		"a password":           {[]func(*Options){setting("address=redis:6379", "listName=jobs", "password=secret")}, []string{"password", "TriggerAuthentication"}},
		"a setting twice":      {[]func(*Options){setting("listName=a", "listName=b")}, []string{"listName", "twice"}},
		"messages by settings": {[]func(*Options){setting("address=redis:6379", "listName=jobs", "listLength=3")}, []string{"listLength", "flag of its own"}},
		"no messages":          {[]func(*Options){byRedis, func(o *Options) { o.Queue.Messages = 0 }}, []string{"0 messages", "at least 1"}},
		"load as well":         {[]func(*Options){byRedis, with("realtime")}, []string{"profile realtime", "kvCache", "batch"}},
		"a query as well":      {[]func(*Options){byRedis, func(o *Options) { o.Demand = "sum(queue)" }}, []string{"query", "leave the query out"}},
		"by the controller":    {[]func(*Options){byRedis, through}, []string{"controller asks Prometheus"}},
		"the last season":      {[]func(*Options){byRedis, func(o *Options) { o.Ahead = "5m" }}, []string{"schedules in its place"}},
		"warm replicas":        {[]func(*Options){byRedis, func(o *Options) { o.Warm = 1 }}, []string{"gates", "have none wait"}},
		"settings of no queue": {[]func(*Options){func(o *Options) { o.Queue.Settings = []string{"a=b"} }}, []string{"without its kind", "kafka, redis, sqs"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Build(options(t, test.change...))
			fixture.Sentence(t, err, test.want...)
		})
	}
}

// A value from the environment of the workload's pods is as good as one that is written here.
func TestASettingMayBeInTheEnvironment(t *testing.T) {
	trigger := build(t, queued("redis", "addressFromEnv=REDIS", "listName=jobs")).ScaledObject.Spec.Triggers[0]
	if trigger.Metadata["addressFromEnv"] != "REDIS" {
		t.Errorf("the trigger has %v", trigger.Metadata)
	}
	if !slices.Equal(Queues(), []string{"kafka", "redis", "sqs"}) {
		t.Errorf("there are %v", Queues())
	}
}
