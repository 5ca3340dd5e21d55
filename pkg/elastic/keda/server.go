package keda

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/api/externalscaler"
)

// Limits for one client. A KEDA operator has one connection for all ScaledObjects, and on it polls and
// two streams per trigger of type external-push.
const (
	maxConnections = 256
	// Beyond it a client's requests wait for a stream to end. 1,000 ScaledObjects have 2,000 streams.
	maxStreams = 1 << 14
	// Trigger metadata is written by hand.
	maxRequestBytes = 256 << 10
	maxHeaderBytes  = 16 << 10

	handshakeTimeout = 10 * time.Second
	// requestTimeout bounds requests without a deadline; KEDA sets none.
	requestTimeout = 15 * time.Second
	// stopTimeout is for requests in flight at shutdown.
	stopTimeout = 5 * time.Second
)

// streamAge is when the server ends a stream in order. KEDA backs off up to a minute after each broken
// stream, and resets the back-off only after an orderly end. Without one, activation would stay up to
// a minute late after one outage of the controller. KEDA reopens the stream after two seconds and gets
// the state at once.
const streamAge = 15 * time.Minute

// connectionAge is when the server asks a client to reconnect, so that its certificate is verified
// again. Streams get the time to end in order.
const connectionAge = 30 * time.Minute

// Options of a Server.
type Options struct {
	// Address is the host:port to listen on.
	Address string
	// TLS is zero for plain text.
	TLS Files
	// Listening, if not nil, is called with the listener's address.
	Listening func(net.Addr)
	// Clock measures stream ages and response times.
	Clock clock.WithDelayedExecution
}

// Server serves KEDA's external scaler. It is a Runnable of controller-runtime's manager.
type Server struct {
	options Options
	scaler  scaler
}

// NewServer validates the options. It does not listen yet.
func NewServer(options Options, a scaler) (*Server, error) {
	if _, _, err := net.SplitHostPort(options.Address); err != nil {
		return nil, fmt.Errorf("serve KEDA on %q: %w: give host:port or :port", options.Address, err)
	}
	if err := options.TLS.validate(); err != nil {
		return nil, err
	}
	return &Server{options: options, scaler: a}, nil
}

// NeedLeaderElection is false: every replica serves, so that a change of leader costs KEDA no answer.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends. If the certificate cannot be read, it waits: a broken Secret must not
// stop scale-out.
func (s *Server) Start(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	logger := klog.FromContext(ctx).WithName("keda")
	ctx = klog.NewContext(ctx, logger)

	options := serverOptions()
	if s.options.TLS == (Files{}) {
		options = append(options, grpc.Creds(insecure.NewCredentials()))
	} else {
		certificates, err := waitForCertificates(ctx, s.options.TLS, s.options.Clock)
		if err != nil {
			return nil // ctx has ended
		}
		ended := certificates.start(ctx)
		defer func() { stop(); ended() }()
		options = append(options, grpc.Creds(certificates.credentials(ctx)))
	}
	server := grpc.NewServer(options...)
	externalscaler.RegisterExternalScalerServer(server, newGRPCService(ctx, s.scaler, s.options.Clock))

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("serve KEDA on %s: %w: free the port or choose another", s.options.Address, err)
	}
	logger.Info("Serving KEDA's external scaler", "address", listener.Addr().String(), "tls", s.options.TLS.Certificate != "", "clientCertificates", s.options.TLS.ClientCA != "")
	if s.options.Listening != nil {
		s.options.Listening(listener.Addr())
	}
	return serve(ctx, server, netutil.LimitListener(listener, maxConnections))
}

func serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		// KEDA's client sends no pings, but a proxy or service mesh in between may.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 20 * time.Second, PermitWithoutStream: true}),
		// Pings detect clients whose node is gone.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:                  time.Minute,
			Timeout:               20 * time.Second,
			MaxConnectionIdle:     10 * time.Minute,
			MaxConnectionAge:      connectionAge,
			MaxConnectionAgeGrace: streamAge + time.Minute,
		}),
	}
}

// serve returns when all handlers have returned, or stopTimeout after ctx ended.
func serve(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		cutOff := time.AfterFunc(stopTimeout, server.Stop)
		defer cutOff.Stop()
		server.GracefulStop()
	}()
	err := server.Serve(listener)
	cancel()
	<-stopped
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve KEDA on %s: %w", listener.Addr(), err)
	}
	return nil
}
