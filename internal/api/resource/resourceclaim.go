package resource

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

// ResourceClaim requests devices; its status has the devices that the scheduler allocated.
var ResourceClaim = kind.Of(kind.Definition[*resourcev1.ResourceClaim]{
	GVK: resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"), Plural: "resourceclaims", Namespaced: true,
	List: &resourcev1.ResourceClaimList{},
	Default: func(claim *resourcev1.ResourceClaim) {
		defaultClaimSpec(&claim.Spec)
		if allocation := claim.Status.Allocation; allocation != nil {
			for i := range allocation.Devices.Results {
				defaultTolerations(allocation.Devices.Results[i].Tolerations)
			}
		}
	},
	Prepare: func(_ *kind.Request, claim, old *resourcev1.ResourceClaim) {
		if old == nil {
			dropDisabledClaimFields(&claim.Spec, nil)
		} else {
			dropDisabledClaimFields(&claim.Spec, &old.Spec)
		}
	},
	Validate: func(_ *kind.Request, claim, old *resourcev1.ResourceClaim) field.ErrorList {
		path := field.NewPath("spec")
		if old == nil {
			return validateClaimSpec(&claim.Spec, path)
		}
		if !equality.Semantic.DeepEqual(claim.Spec, old.Spec) {
			return field.ErrorList{field.Invalid(path, nil, "field is immutable")}
		}
		return nil
	},
	CopyStatus: func(to, from *resourcev1.ResourceClaim) { to.Status = from.Status },
	PrepareStatus: func(_ *kind.Request, claim, old *resourcev1.ResourceClaim) {
		prepareClaimStatus(&claim.Status, &old.Status)
	},
	ValidateStatus: validateClaimStatus,
	StatusOnly:     true,
	BeforeCreate: func(ctx context.Context, client kind.Client, _ *kind.Request, claim *resourcev1.ResourceClaim) (func(), error) {
		return nil, adminAllowed(ctx, client, claimKind, &claim.ObjectMeta, adminRequested(claim.Spec.Devices.Requests))
	},
	BeforeStatus: func(ctx context.Context, client kind.Client, _ *kind.Request, claim, old *resourcev1.ResourceClaim) error {
		if adminGranted(old) != nil {
			return nil
		}
		return adminAllowed(ctx, client, claimKind, &claim.ObjectMeta, adminGranted(claim))
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.)."),
		kind.AgeColumn(),
	},
	Row: func(claim *resourcev1.ResourceClaim, now time.Time) []any {
		return []any{claim.Name, claimState(claim), kind.Age(claim.CreationTimestamp, now)}
	},
})

// claimKind is the kind in errors.
var claimKind = schema.GroupKind{Group: resourcev1.GroupName, Kind: "ResourceClaim"}

func claimState(claim *resourcev1.ResourceClaim) string {
	var states []string
	if claim.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case claim.Status.Allocation != nil && len(claim.Status.ReservedFor) > 0:
		states = append(states, "allocated", "reserved")
	case claim.Status.Allocation != nil:
		states = append(states, "allocated")
	case claim.DeletionTimestamp == nil:
		states = append(states, "pending")
	}
	return strings.Join(states, ",")
}

// Admin access to a device that is in use is for administrators. Their namespaces have a label.

func adminRequested(requests []resourcev1.DeviceRequest) *field.Path {
	i := slices.IndexFunc(requests, func(request resourcev1.DeviceRequest) bool {
		return request.Exactly != nil && ptr.Deref(request.Exactly.AdminAccess, false)
	})
	if i < 0 {
		return nil
	}
	return field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess")
}

func adminGranted(claim *resourcev1.ResourceClaim) *field.Path {
	if claim.Status.Allocation == nil {
		return nil
	}
	i := slices.IndexFunc(claim.Status.Allocation.Devices.Results, func(result resourcev1.DeviceRequestAllocationResult) bool {
		return ptr.Deref(result.AdminAccess, false)
	})
	if i < 0 {
		return nil
	}
	return field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess")
}

// adminAllowed refuses admin access in a namespace without the label.
func adminAllowed(ctx context.Context, client kind.Client, gk schema.GroupKind, meta *metav1.ObjectMeta, path *field.Path) error {
	if path == nil {
		return nil
	}
	var problem *field.Error
	namespace, err := client.Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", meta.Namespace)
	switch {
	case err != nil:
		problem = field.InternalError(path, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))
	case namespace.GetLabels()[resourcev1.DRAAdminNamespaceLabelKey] != "true":
		problem = field.Forbidden(path, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey))
	default:
		return nil
	}
	return kind.NewInvalid(gk, meta.Name, field.ErrorList{problem})
}
