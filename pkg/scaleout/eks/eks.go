// Package eks calls EKS about managed node groups, and EC2 Auto Scaling about the groups behind them and about self-managed
// groups, with AWS's own clients. It decides nothing.
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

	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Options of a client. Credentials come from the default chain: IRSA, Pod Identity or the environment.
type Options struct {
	// Region of AWS. Empty: that of the environment, which IRSA and Pod Identity set. Instance metadata is not used.
	Region string
	// Endpoint replaces that of EKS, for tests and VPC endpoints. AWS_ENDPOINT_URL_AUTO_SCALING replaces that of EC2 Auto
	// Scaling.
	Endpoint string
	// StartupTaints are left out of the templates of discovered groups.
	StartupTaints template.StartupTaints
	// Now is the clock. Nil: the real one.
	Now func() time.Time
}

// Client reads node groups and changes their size. It is safe for concurrent use.
type Client struct {
	api     *eks.Client
	scaling *autoscaling.Client
	options Options
	timeout time.Duration

	mu     sync.Mutex
	groups map[groupID]*memory
	// ended are instances that terminate, with the time until which they are remembered.
	ended map[string]time.Time
	// pause is the length of the pause after throttling, and until its end.
	pause time.Duration
	until time.Time
}

const (
	// fresh is how long an answer is cached.
	fresh = 15 * time.Second
	// callTimeout bounds a call with its retries.
	callTimeout = 10 * time.Second
	// attempts of a call that failed, but not by throttling.
	attempts   = 2
	maxBackoff = time.Second
	// minPause and maxPause bound the pause of all calls after throttling.
	minPause = 30 * time.Second
	maxPause = 5 * time.Minute
)

// New makes a client. It calls nothing.
func New(ctx context.Context, o Options) (*Client, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	c, err := config.LoadDefaultConfig(ctx, config.WithRegion(o.Region), config.WithRetryer(polite))
	if err != nil {
		return nil, fmt.Errorf("read AWS's configuration from the environment: %w", err)
	}
	if c.Region == "" {
		return nil, errors.New("no AWS region is known: set the controller's, or AWS_REGION in its environment, which IRSA and Pod Identity do")
	}
	if u, err := url.Parse(o.Endpoint); o.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("the endpoint of EKS %q is no URL: give one such as https://eks.ap-northeast-2.amazonaws.com", o.Endpoint)
	}
	api := eks.NewFromConfig(c, func(e *eks.Options) {
		e.HTTPClient = bounded{e.HTTPClient, maxAnswer}
		if o.Endpoint != "" {
			e.BaseEndpoint = aws.String(o.Endpoint)
		}
	})
	scaling := autoscaling.NewFromConfig(c, func(a *autoscaling.Options) { a.HTTPClient = bounded{a.HTTPClient, maxScalingAnswer} })
	return &Client{api: api, scaling: scaling, options: o, timeout: callTimeout, groups: map[groupID]*memory{}, ended: map[string]time.Time{}}, nil
}

// polite retries failures that may pass quickly. It does not retry throttled calls: they would use up the quota of the whole
// account.
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
