package scheduler

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/configfile"
	"skiff/internal/scheduler/plugins"
)

// validateConfiguration finds everything that is wrong with a configuration, at once, by upstream's rules and under its field paths.
func validateConfiguration(c *configv1.KubeSchedulerConfiguration) error {
	var all field.ErrorList
	all = append(all, validateClientConnection(c, field.NewPath("clientConnection"))...)
	all = append(all, validateLeaderElection(c, field.NewPath("leaderElection"))...)
	if p := c.Parallelism; p != nil && *p <= 0 {
		all = append(all, field.Invalid(field.NewPath("parallelism"), *p, "should be an integer value greater than zero"))
	}
	all = append(all, validateProfiles(c.Profiles, field.NewPath("profiles"))...)
	all = append(all, validatePercentage(c.PercentageOfNodesToScore, field.NewPath("percentageOfNodesToScore"))...)
	initial, most := backoffSeconds(c)
	if initial <= 0 {
		all = append(all, field.Invalid(field.NewPath("podInitialBackoffSeconds"), initial, "must be greater than 0"))
	}
	if most < initial {
		all = append(all, field.Invalid(field.NewPath("podMaxBackoffSeconds"), most, "must be greater than or equal to PodInitialBackoffSeconds"))
	}
	all = append(all, validateExtenders(c.Extenders, field.NewPath("extenders"))...)
	return all.ToAggregate()
}

func validateClientConnection(c *configv1.KubeSchedulerConfiguration, path *field.Path) (all field.ErrorList) {
	if c.ClientConnection.Burst < 0 {
		all = append(all, field.Invalid(path.Child("burst"), c.ClientConnection.Burst, "must be non-negative"))
	}
	return all
}

// validateLeaderElection validates the settings of leader election, unless it is disabled.
func validateLeaderElection(c *configv1.KubeSchedulerConfiguration, path *field.Path) (all field.ErrorList) {
	e := &c.LeaderElection
	if e.LeaderElect != nil && !*e.LeaderElect {
		return nil
	}
	orElse := func(d, usual time.Duration) time.Duration {
		if d == 0 {
			return usual
		}
		return d
	}
	lease, renew := orElse(e.LeaseDuration.Duration, 15*time.Second), orElse(e.RenewDeadline.Duration, 10*time.Second)
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"leaseDuration", lease}, {"renewDeadline", renew}, {"retryPeriod", orElse(e.RetryPeriod.Duration, 2*time.Second)}} {
		if d.value < 0 {
			all = append(all, field.Invalid(path.Child(d.name), d.value.String(), "must be greater than zero"))
		}
	}
	if lease <= renew {
		all = append(all, field.Invalid(path.Child("leaseDuration"), renew.String(), "must be greater than `RenewDeadline`"))
	}
	if e.ResourceLock != "" && e.ResourceLock != "leases" {
		all = append(all, field.Invalid(path.Child("resourceLock"), e.ResourceLock, `resourceLock value must be "leases"`))
	}
	return all
}

func validatePercentage(p *int32, path *field.Path) (all field.ErrorList) {
	if p != nil && (*p < 0 || *p > 100) {
		all = append(all, field.Invalid(path, *p, "not in valid range [0-100]"))
	}
	return all
}

func validateProfiles(profiles []configv1.KubeSchedulerProfile, path *field.Path) (all field.ErrorList) {
	seen := map[string]int{}
	for i := range profiles {
		p, path := &profiles[i], path.Index(i)
		name := corev1.DefaultSchedulerName
		if p.SchedulerName != nil || len(profiles) > 1 {
			name = ""
			if p.SchedulerName != nil {
				name = *p.SchedulerName
			}
		}
		if name == "" {
			all = append(all, field.Required(path.Child("schedulerName"), ""))
		}
		all = append(all, validatePercentage(p.PercentageOfNodesToScore, path.Child("percentageOfNodesToScore"))...)
		all = append(all, validatePlugins(p.Plugins, path.Child("plugins"))...)
		all = append(all, validatePluginConfig(p.PluginConfig, path.Child("pluginConfig"))...)
		if before, twice := seen[name]; twice {
			all = append(all, field.Duplicate(path.Child("schedulerName"), fmt.Sprintf("profiles[%d].schedulerName", before)))
		}
		seen[name] = i
	}
	return append(all, validateCommonQueueSort(profiles, path)...)
}

// removedPlugins were in earlier versions of the configuration.
var removedPlugins = []string{"AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"}

func removed(path *field.Path, name string) (all field.ErrorList) {
	if slices.Contains(removedPlugins, name) {
		version := configv1.SchemeGroupVersion.String()
		all = append(all, field.Invalid(path, name, fmt.Sprintf("was invalid in version %q (KubeSchedulerConfiguration is version %q)", version, version)))
	}
	return all
}

func validatePlugins(file *configv1.Plugins, path *field.Path) (all field.ErrorList) {
	for _, point := range plugins.ExtensionPointsOf(file) {
		for i, plugin := range point.Set.Enabled {
			path := path.Child(point.Field, "enabled").Index(i)
			all = append(all, removed(path, plugin.Name)...)
			if w := plugin.Weight; w != nil && *w < 0 {
				all = append(all, field.Invalid(path.Child("weight"), *w, "must not be negative"))
			}
		}
	}
	return all
}

// validateCommonQueueSort requires the same queue sort plugin in all profiles, because they share one queue.
func validateCommonQueueSort(profiles []configv1.KubeSchedulerProfile, path *field.Path) (all field.ErrorList) {
	sorters := func(p *configv1.KubeSchedulerProfile) (set configv1.PluginSet) {
		if p.Plugins != nil {
			set = p.Plugins.QueueSort
		}
		return set
	}
	argumentsOf := func(p *configv1.KubeSchedulerProfile, name string) (data []byte, given bool) {
		for _, c := range p.PluginConfig {
			if c.Name == name {
				data, given = plugins.RawArguments(c.Args), true
			}
		}
		return data, given
	}
	if len(profiles) == 0 {
		return nil
	}
	first := sorters(&profiles[0])
	if n := len(first.Enabled); n > 1 {
		all = append(all, field.Invalid(path.Index(0).Child("plugins", "queueSort", "Enabled"), n, "only one queue sort plugin can be enabled"))
	}
	for i := 1; i < len(profiles); i++ {
		set, path := sorters(&profiles[i]), path.Index(i)
		// The weight of a disabled plugin is not used.
		if !slices.EqualFunc(set.Enabled, first.Enabled, samePlugin) || !slices.Equal(namesOf(set.Disabled), namesOf(first.Disabled)) {
			all = append(all, field.Invalid(path.Child("plugins", "queueSort"), strings.Join(namesOf(set.Enabled), ", "), "must be the same for all profiles"))
		}
		if len(first.Enabled) == 0 {
			continue
		}
		want, _ := argumentsOf(&profiles[0], first.Enabled[0].Name)
		if got, given := argumentsOf(&profiles[i], first.Enabled[0].Name); given && !bytes.Equal(got, want) {
			all = append(all, field.Invalid(path.Child("pluginConfig", "args"), string(got), "queueSort must be the same for all profiles"))
		}
	}
	return all
}

// samePlugin reports whether two plugins have the same name and weight. No weight is 0.
func samePlugin(a, b configv1.Plugin) bool {
	return a.Name == b.Name && ptr.Deref(a.Weight, 0) == ptr.Deref(b.Weight, 0)
}

func namesOf(plugins []configv1.Plugin) (names []string) {
	for _, p := range plugins {
		names = append(names, p.Name)
	}
	return names
}

func validatePluginConfig(configs []configv1.PluginConfig, path *field.Path) (all field.ErrorList) {
	seen := map[string]bool{}
	for i := range configs {
		name, path := configs[i].Name, path.Index(i)
		if seen[name] {
			all = append(all, field.Duplicate(path, name))
		}
		seen[name] = true
		all = append(all, removed(path, name)...)
		if validate := argumentValidators[name]; validate != nil {
			all = append(all, validate(path.Child("args"), name, plugins.RawArguments(configs[i].Args))...)
		}
	}
	return all
}

// argumentValidators validate the arguments of plugins, by plugin name.
var argumentValidators = map[string]func(path *field.Path, name string, arguments []byte) field.ErrorList{
	plugins.NodeAffinityName:       arguments(validateNodeAffinity),
	plugins.NodeResourcesFitName:   arguments(validateNodeResourcesFit),
	plugins.VolumeBindingName:      arguments(validateVolumeBinding),
	plugins.PodTopologySpreadName:  arguments(validatePodTopologySpread),
	plugins.InterPodAffinityName:   arguments(validateInterPodAffinity),
	plugins.DynamicResourcesName:   arguments(validateDynamicResources),
	plugins.DefaultPreemptionName:  arguments(validateDefaultPreemption),
	plugins.BalancedAllocationName: arguments(validateBalancedAllocation),
}

// arguments decodes arguments into upstream's type for them before they are validated.
func arguments[T any](validate func(*field.Path, *T) field.ErrorList) func(*field.Path, string, []byte) field.ErrorList {
	return func(path *field.Path, name string, data []byte) field.ErrorList {
		read := new(T)
		if err := readArguments(name, data, read); err != nil {
			return field.ErrorList{field.Invalid(path, string(data), err.Error())}
		}
		return validate(path, read)
	}
}

// readArguments decodes the arguments of a plugin. If they have a kind, it must be the plugin's own.
func readArguments(name string, data []byte, into any) error {
	if len(data) == 0 {
		return nil
	}
	var is struct{ APIVersion, Kind string }
	if err := json.Unmarshal(data, &is); err != nil {
		return fmt.Errorf("decoding args for plugin %s: %w", name, err)
	}
	group, err := schema.ParseGroupVersion(is.APIVersion)
	want := configv1.SchemeGroupVersion.WithKind(name + "Args").GroupKind()
	if got := group.WithKind(is.Kind).GroupKind(); err != nil || (is.Kind != "" && is.Kind != want.Kind) || (is.APIVersion != "" && group.Group != want.Group) {
		return fmt.Errorf("args for plugin %s were not of type %s, got %s", name, want, got)
	}
	strict, err := configfile.DecodeLenient(data, into)
	if err != nil {
		return fmt.Errorf("decoding args for plugin %s: %w", name, err)
	}
	if err := errors.Join(strict...); err != nil {
		return fmt.Errorf("decoding args for plugin %s: strict decoding error: %w", name, err)
	}
	return nil
}

func validateNodeAffinity(path *field.Path, args *configv1.NodeAffinityArgs) (all field.ErrorList) {
	if args.AddedAffinity == nil {
		return nil
	}
	path = path.Child("addedAffinity")
	note := func(err error) {
		if err == nil {
			return
		}
		errs := []error{err}
		if many, ok := err.(utilerrors.Aggregate); ok {
			errs = utilerrors.Flatten(many).Errors()
		}
		for _, err := range errs {
			var one *field.Error
			if !errors.As(err, &one) {
				one = field.InternalError(path, err)
			}
			all = append(all, one)
		}
	}
	if selector := args.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; selector != nil {
		_, err := nodeaffinity.NewNodeSelector(selector, field.WithPath(path.Child("requiredDuringSchedulingIgnoredDuringExecution")))
		note(err)
	}
	if terms := args.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
		_, err := nodeaffinity.NewPreferredSchedulingTerms(terms, field.WithPath(path.Child("preferredDuringSchedulingIgnoredDuringExecution")))
		note(err)
	}
	return all
}

func validateNodeResourcesFit(path *field.Path, args *configv1.NodeResourcesFitArgs) (all field.ErrorList) {
	for i, name := range args.IgnoredResources {
		all = append(all, metav1validation.ValidateLabelName(name, path.Child("ignoredResources").Index(i))...)
	}
	for i, group := range args.IgnoredResourceGroups {
		path := path.Child("ignoredResourceGroups").Index(i)
		if strings.Contains(group, "/") {
			all = append(all, field.Invalid(path, group, "resource group name can't contain '/'"))
		}
		all = append(all, metav1validation.ValidateLabelName(group, path)...)
	}
	if args.ScoringStrategy == nil {
		return all
	}
	path = path.Child("scoringStrategy")
	strategy := args.ScoringStrategy
	known := []configv1.ScoringStrategyType{configv1.LeastAllocated, configv1.MostAllocated, configv1.RequestedToCapacityRatio}
	if !slices.Contains(known, strategy.Type) {
		all = append(all, field.NotSupported(path.Child("type"), strategy.Type, known))
	}
	for i, r := range strategy.Resources {
		// A weight of 0 means 1.
		if r.Weight < 0 || r.Weight > 100 {
			all = append(all, field.Invalid(path.Child("resources").Index(i).Child("weight"), r.Weight, fmt.Sprintf("resource weight of %v not in valid range (0, 100]", r.Name)))
		}
	}
	ratio := path.Child("requestedToCapacityRatio")
	switch {
	case strategy.Type != configv1.RequestedToCapacityRatio && strategy.RequestedToCapacityRatio != nil:
		all = append(all, field.Forbidden(ratio, "must be nil when type is not RequestedToCapacityRatio"))
	case strategy.Type != configv1.RequestedToCapacityRatio:
	case strategy.RequestedToCapacityRatio == nil:
		all = append(all, field.Required(ratio, "must be specified when type is RequestedToCapacityRatio"))
	default:
		all = append(all, validateShape(strategy.RequestedToCapacityRatio.Shape, ratio.Child("shape"))...)
	}
	return all
}

// validateShape validates the points of a function from utilization to score.
func validateShape(shape []configv1.UtilizationShapePoint, path *field.Path) (all field.ErrorList) {
	if len(shape) == 0 {
		return field.ErrorList{field.Required(path, "at least one point must be specified")}
	}
	for i := 1; i < len(shape); i++ {
		if shape[i-1].Utilization >= shape[i].Utilization {
			all = append(all, field.Invalid(path.Index(i).Child("utilization"), shape[i].Utilization, "values must be sorted in increasing order"))
			break
		}
	}
	for i, point := range shape {
		if point.Utilization < 0 || point.Utilization > 100 {
			all = append(all, field.Invalid(path.Index(i).Child("utilization"), point.Utilization, "not in valid range [0, 100]"))
		}
		if point.Score < 0 || point.Score > plugins.MaxCustomScore {
			all = append(all, field.Invalid(path.Index(i).Child("score"), point.Score, fmt.Sprintf("not in valid range [0, %d]", plugins.MaxCustomScore)))
		}
	}
	return all
}

func validateVolumeBinding(path *field.Path, args *configv1.VolumeBindingArgs) (all field.ErrorList) {
	if t := args.BindTimeoutSeconds; t != nil && *t < 0 {
		all = append(all, field.Invalid(path.Child("bindTimeoutSeconds"), *t, "invalid BindTimeoutSeconds, should not be a negative value"))
	}
	if len(args.Shape) > 0 {
		all = append(all, validateShape(args.Shape, path.Child("shape"))...)
	}
	return all
}

func validatePodTopologySpread(path *field.Path, args *configv1.PodTopologySpreadArgs) (all field.ErrorList) {
	defaulting := args.DefaultingType
	if defaulting == "" {
		defaulting = configv1.SystemDefaulting
	}
	known := []configv1.PodTopologySpreadConstraintsDefaulting{configv1.SystemDefaulting, configv1.ListDefaulting}
	if !slices.Contains(known, defaulting) {
		all = append(all, field.NotSupported(path.Child("defaultingType"), defaulting, known))
	} else if defaulting == configv1.SystemDefaulting && len(args.DefaultConstraints) > 0 {
		all = append(all, field.Invalid(path.Child("defaultingType"), defaulting, "when .defaultConstraints are not empty"))
	}
	constraints := path.Child("defaultConstraints")
	actions := []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}
	type pair struct {
		key    string
		action corev1.UnsatisfiableConstraintAction
	}
	seen := map[pair]bool{}
	for i, c := range args.DefaultConstraints {
		path := constraints.Index(i)
		if c.MaxSkew <= 0 {
			all = append(all, field.Invalid(path.Child("maxSkew"), c.MaxSkew, "not in valid range (0, inf)"))
		}
		if c.TopologyKey == "" {
			all = append(all, field.Required(path.Child("topologyKey"), "can not be empty"))
		} else {
			all = append(all, metav1validation.ValidateLabelName(c.TopologyKey, path.Child("topologyKey"))...)
		}
		switch {
		case c.WhenUnsatisfiable == "":
			all = append(all, field.Required(path.Child("whenUnsatisfiable"), "can not be empty"))
		case !slices.Contains(actions, c.WhenUnsatisfiable):
			all = append(all, field.NotSupported(path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, actions))
		}
		if c.LabelSelector != nil {
			all = append(all, field.Forbidden(path.Child("labelSelector"), "constraint must not define a selector, as they deduced for each pod"))
		}
		if seen[pair{c.TopologyKey, c.WhenUnsatisfiable}] {
			all = append(all, field.Duplicate(path, fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)))
		}
		seen[pair{c.TopologyKey, c.WhenUnsatisfiable}] = true
	}
	return all
}

func validateInterPodAffinity(path *field.Path, args *configv1.InterPodAffinityArgs) (all field.ErrorList) {
	if w := args.HardPodAffinityWeight; w != nil && (*w < 0 || *w > 100) {
		all = append(all, field.Invalid(path.Child("hardPodAffinityWeight"), *w, "not in valid range [0, 100]"))
	}
	return all
}

func validateDynamicResources(path *field.Path, args *configv1.DynamicResourcesArgs) (all field.ErrorList) {
	if t := args.FilterTimeout; t != nil && t.Duration < 0 {
		all = append(all, field.Invalid(path.Child("filterTimeout"), t.Duration.String(), "must be zero or positive"))
	}
	if t := args.BindingTimeout; t != nil && t.Duration < time.Second {
		all = append(all, field.Invalid(path.Child("bindingTimeout"), t.Duration.String(), "must be at least 1 second"))
	}
	return all
}

func validateDefaultPreemption(path *field.Path, args *configv1.DefaultPreemptionArgs) (all field.ErrorList) {
	percentage, absolute := path.Child("minCandidateNodesPercentage"), path.Child("minCandidateNodesAbsolute")
	if p := args.MinCandidateNodesPercentage; p != nil && (*p < 0 || *p > 100) {
		all = append(all, field.Invalid(percentage, *p, "not in valid range [0, 100]"))
	}
	if a := args.MinCandidateNodesAbsolute; a != nil && *a < 0 {
		all = append(all, field.Invalid(absolute, *a, "not in valid range [0, inf)"))
	}
	if p, a := args.MinCandidateNodesPercentage, args.MinCandidateNodesAbsolute; p != nil && a != nil && *p == 0 && *a == 0 {
		all = append(all, field.Invalid(percentage, 0, "cannot be zero at the same time as minCandidateNodesAbsolute"),
			field.Invalid(absolute, 0, "cannot be zero at the same time as minCandidateNodesPercentage"))
	}
	return all
}

func validateBalancedAllocation(path *field.Path, args *configv1.NodeResourcesBalancedAllocationArgs) (all field.ErrorList) {
	seen := map[string]bool{}
	for i, r := range args.Resources {
		path := path.Child("resources").Index(i)
		if seen[r.Name] {
			all = append(all, field.Duplicate(path.Child("name"), r.Name))
		}
		seen[r.Name] = true
		// A weight of 0 means 1.
		if r.Weight != 0 && r.Weight != 1 {
			all = append(all, field.Invalid(path.Child("weight"), r.Weight, "must be 1"))
		}
	}
	return all
}

func validateExtenders(extenders []configv1.Extender, path *field.Path) (all field.ErrorList) {
	binders := 0
	managed := map[string]bool{}
	for i := range extenders {
		e, path := &extenders[i], path.Index(i)
		if e.PrioritizeVerb != "" && e.Weight <= 0 {
			all = append(all, field.Invalid(path.Child("weight"), e.Weight, "must have a positive weight applied to it"))
		}
		if e.BindVerb != "" {
			binders++
		}
		for j, r := range e.ManagedResources {
			path := path.Child("managedResources").Index(j).Child("name")
			problems := validation.IsQualifiedName(r.Name)
			for _, problem := range problems {
				all = append(all, field.Invalid(path, r.Name, problem))
			}
			if len(problems) == 0 && !isExtendedName(r.Name) {
				all = append(all, field.Invalid(path, r.Name, "is an invalid extended resource name"))
			}
			if managed[r.Name] {
				all = append(all, field.Invalid(path, r.Name, "duplicate extender managed resource name"))
			}
			managed[r.Name] = true
		}
	}
	if binders > 1 {
		all = append(all, field.Invalid(path, fmt.Sprintf("found %d extenders implementing bind", binders), "only one extender can implement bind"))
	}
	return all
}

// isExtendedName reports whether a name is that of an extended resource, which is not one of Kubernetes and can be used in a quota.
func isExtendedName(name string) bool {
	native := !strings.Contains(name, "/") || strings.Contains(name, corev1.ResourceDefaultNamespacePrefix)
	return !native && !strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) && len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) == 0
}

// Unused are the fields of a KubeSchedulerConfiguration that have no effect. A file that sets one of them is refused, unless the setting is
// harmless or describes what skiff does anyway.
var Unused = []configfile.Unused{
	{Path: "parallelism", Harmless: true, Reason: "plugins evaluate all nodes at once"},
	{Path: "percentageOfNodesToScore", Accepted: []string{"0", "100"}, Harmless: true, Reason: "all feasible nodes are scored"},
	{Path: "profiles.percentageOfNodesToScore", Accepted: []string{"0", "100"}, Harmless: true, Reason: "all feasible nodes are scored"},
	{Path: "clientConnection.acceptContentTypes", Harmless: true, Reason: "the scheduler always uses protobuf"},
	{Path: "clientConnection.contentType", Accepted: []string{"application/vnd.kubernetes.protobuf"}, Harmless: true, Reason: "the scheduler always uses protobuf"},
	{Path: "clientConnection.qps", Harmless: true, Reason: "the API server limits its clients by priority and fairness"},
	{Path: "clientConnection.burst", Harmless: true, Reason: "the API server limits its clients by priority and fairness"},
	{Path: "delayCacheUntilActive", Harmless: true, Reason: "the scheduler always follows the cluster, so that it can answer queries and take over at once"},
}

// Warnings name the fields of a configuration that are set and have no effect.
func Warnings(c *configv1.KubeSchedulerConfiguration) []string {
	warnings, _ := configfile.Check(c, Unused)
	return warnings
}
