// Package eks talks to EKS about managed node groups, and to EC2 Auto Scaling about the groups
// behind them and about self-managed ones, through AWS's own clients. Credentials come by the
// clients' default chain: IRSA, Pod Identity, or the environment. It never decides anything.
package eks

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/eks"
)

// Options of a client.
type Options struct {
	// Region is AWS's; empty: that of the environment, where IRSA and Pod Identity put it.
	// The machine's own metadata is never asked.
	Region string
	// Endpoint replaces that of EKS, for tests and for VPC endpoints of one's own; empty: AWS's.
	// That of EC2 Auto Scaling is AWS's, or what AWS_ENDPOINT_URL_AUTO_SCALING says.
	Endpoint string
	// Fresh is how long an answer counts; 0: 15 s.
	Fresh time.Duration
	// Timeout bounds one call with its retries; 0: 10 s.
	Timeout time.Duration
	// Now is the clock; nil: the real one.
	Now func() time.Time
}

// Client asks EKS about node groups and changes their size. It is safe for concurrent use.
type Client struct {
	api     *eks.Client
	scaling *autoscaling.Client
	options Options

	mu      sync.Mutex
	answers map[groupID]answer
	sizes   map[groupID]size
	// issues are the complaints about a group's health when its size was last changed from
	// here: EKS leaves old ones standing until a scale-up succeeds, and they carry no time.
	issues map[groupID]issues
	// refusals are what AWS has not begun.
	refusals map[groupID]refused
	// held is until when a node group is not changed, after a call that began nothing for sure.
	held map[groupID]time.Time
	// ended are instances that were seen to terminate, until when that counts.
	ended map[string]time.Time
	// pause is how long nobody calls after EKS has throttled, until when.
	pause time.Duration
	until time.Time
}

// Defaults and limits.
const (
	defaultFresh   = 15 * time.Second
	defaultTimeout = 10 * time.Second
	// attempts of a call at failures of the network or of EKS, but never at throttling.
	attempts   = 2
	maxBackoff = time.Second
	// minPause and maxPause bound how long nobody calls after EKS has throttled.
	minPause = 30 * time.Second
	maxPause = 5 * time.Minute
)

// New makes a client. Nothing is called yet, and no credentials are looked for.
func New(ctx context.Context, o Options) (*Client, error) {
	o = o.withDefaults()
	c, err := config.LoadDefaultConfig(ctx, config.WithRegion(o.Region), config.WithRetryer(polite))
	if err != nil {
		return nil, fmt.Errorf("reading AWS's configuration from the environment: %w", err)
	}
	if c.Region == "" {
		return nil, errors.New("no AWS region is known: give the controller one, or AWS_REGION in its environment, where IRSA and Pod Identity put it by themselves")
	}
	if err := checkEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	api := eks.NewFromConfig(c, func(e *eks.Options) {
		e.HTTPClient = bounded{e.HTTPClient, maxAnswer}
		if o.Endpoint != "" {
			e.BaseEndpoint = aws.String(o.Endpoint)
		}
	})
	scaling := autoscaling.NewFromConfig(c, func(a *autoscaling.Options) { a.HTTPClient = bounded{a.HTTPClient, maxScalingAnswer} })
	return &Client{
		api: api, scaling: scaling, options: o,
		answers: map[groupID]answer{}, sizes: map[groupID]size{}, issues: map[groupID]issues{},
		refusals: map[groupID]refused{}, held: map[groupID]time.Time{}, ended: map[string]time.Time{},
	}, nil
}

func (o Options) withDefaults() Options {
	if o.Fresh == 0 {
		o.Fresh = defaultFresh
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("the endpoint of EKS %q is no URL: give one such as https://eks.ap-northeast-2.amazonaws.com", endpoint)
	}
	return nil
}

// polite retries what may be over in a moment. Throttling is not: who is throttled and calls
// at once again takes the quota of everyone in the account.
func polite() aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = attempts
		o.MaxBackoff = maxBackoff
		o.Retryables = []retry.IsErrorRetryable{
			retry.NoRetryCanceledError{},
			retry.RetryableConnectionError{},
			retry.RetryableHTTPStatusCode{Codes: retry.DefaultRetryableHTTPStatusCodes},
		}
	})
}
