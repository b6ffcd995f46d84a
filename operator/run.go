package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"trainmaster/operator/api/v1alpha1"
)

// Config has the settings of the controller.
type Config struct {
	API        *rest.Config
	Namespaces []string     // of the jobs; empty: all
	HTTP       net.Listener // of /healthz, /readyz and /metrics. nil: none

	// Lease is the namespace of the lease with which one of several processes is elected. "": no election.
	Lease string
	Log   *logrus.Entry
}

const (
	electionID = "operator.trainmaster.io" // the name of the lease
	againPause = 2 * time.Second           // before the controller starts again
)

// Run reconciles TrainingJobs until ctx ends. If the API server is away, or another process has the lease, the controller starts again in this process:
// a restart of the pod would wait for minutes after repeated failures.
func Run(ctx context.Context, c Config) error {
	log := logr.New(&sink{log: c.Log})
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, batchv1.AddToScheme, rbacv1.AddToScheme, networkingv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	var current atomic.Pointer[ctrl.Manager]
	defer serveHealth(c.HTTP, &current, c.Log)()
	for {
		err := c.run(ctx, scheme, log, &current)
		current.Store(nil)
		//guard:controller-starts-again
		if ctx.Err() != nil {
			return nil
		}
		c.Log.WithError(err).Warn("controller ended, starting again")
		select {
		case <-ctx.Done():
		case <-time.After(againPause):
		}
	}
}

// run reconciles until ctx ends, the lease is lost or the API server cannot be used.
func (c Config) run(ctx context.Context, scheme *runtime.Scheme, log logr.Logger, current *atomic.Pointer[ctrl.Manager]) error {
	ours, err := labels.NewRequirement(NameLabel, selection.Exists, nil)
	if err != nil {
		return err
	}
	caching := cache.Options{
		DefaultLabelSelector: labels.NewSelector().Add(*ours),
		ByObject:             map[client.Object]cache.ByObject{&v1alpha1.TrainingJob{}: {Label: labels.Everything()}},
	}
	for _, namespace := range c.Namespaces {
		if caching.DefaultNamespaces == nil {
			caching.DefaultNamespaces = map[string]cache.Config{}
		}
		caching.DefaultNamespaces[namespace] = cache.Config{}
	}
	manager, err := ctrl.NewManager(c.API, ctrl.Options{
		Scheme: scheme, Logger: log, Cache: caching, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		LeaderElection: c.Lease != "", LeaderElectionNamespace: c.Lease, LeaderElectionID: electionID, LeaderElectionReleaseOnCancel: true,
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	r := &reconciler{Client: manager.GetClient(), api: manager.GetAPIReader(), events: manager.GetEventRecorder("trainmaster"), now: func() time.Time { return time.Now().Truncate(time.Second) }}
	builder := ctrl.NewControllerManagedBy(manager).Named("trainingjob").For(&v1alpha1.TrainingJob{})
	for _, owned := range []client.Object{&batchv1.Job{}, &corev1.ConfigMap{}, &corev1.Service{}, &corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}, &networkingv1.NetworkPolicy{}} {
		builder = builder.Owns(owned)
	}
	if err := builder.Complete(r); err != nil {
		return err
	}
	current.Store(&manager)
	return manager.Start(ctx)
}

// serveHealth serves /healthz, /readyz and /metrics until the returned function is called. The process is healthy while the API server is away.
func serveHealth(listener net.Listener, current *atomic.Pointer[ctrl.Manager], log *logrus.Entry) (stop func()) {
	if listener == nil {
		return func() {}
	}
	routes := http.NewServeMux()
	routes.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	routes.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		asking, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if manager := current.Load(); manager == nil || !(*manager).GetCache().WaitForCacheSync(asking) {
			http.Error(w, "not ready: the API server has not answered", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	routes.Handle("/metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	face := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 8 << 10}
	go func() {
		if err := face.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.WithError(err).Error("HTTP port closed")
		}
	}()
	return func() { face.Close() }
}

// sink writes the log of controller-runtime to the log of the program.
type sink struct {
	log *logrus.Entry
}

var _ logr.LogSink = (*sink)(nil)

// Init implements [logr.LogSink].
func (s *sink) Init(logr.RuntimeInfo) {}

// Enabled implements [logr.LogSink].
func (s *sink) Enabled(level int) bool {
	return level == 0 || s.log.Logger.IsLevelEnabled(logrus.DebugLevel)
}

// Info implements [logr.LogSink].
func (s *sink) Info(level int, message string, pairs ...any) {
	with := fields(s.log, pairs)
	if level == 0 {
		with.Info(message)
		return
	}
	with.Debug(message)
}

// Error implements [logr.LogSink].
func (s *sink) Error(err error, message string, pairs ...any) {
	fields(s.log, pairs).WithError(err).Error(message)
}

// WithValues implements [logr.LogSink].
func (s *sink) WithValues(pairs ...any) logr.LogSink { return &sink{fields(s.log, pairs)} }

// WithName implements [logr.LogSink].
func (s *sink) WithName(name string) logr.LogSink { return &sink{s.log.WithField("part", name)} }

func fields(log *logrus.Entry, pairs []any) *logrus.Entry {
	f := logrus.Fields{}
	for i := 0; i+1 < len(pairs); i += 2 {
		f[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return log.WithFields(f)
}
