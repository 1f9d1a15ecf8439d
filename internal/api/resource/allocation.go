package resource

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// The allocation of a claim, its consumers, and the device status that drivers report.

// deviceID identifies an allocated device, or one share of it: driver/pool/device[/share].
func deviceID[T ~string](driver, pool, device string, share *T) string {
	id := driver + "/" + pool + "/" + device
	if share != nil && *share != "" {
		id += "/" + string(*share)
	}
	return id
}

func allocatedDevices(allocation *resourcev1.AllocationResult) sets.Set[string] {
	ids := sets.New[string]()
	if allocation != nil {
		for _, result := range allocation.Devices.Results {
			ids.Insert(deviceID(result.Driver, result.Pool, result.Device, result.ShareID))
		}
	}
	return ids
}

func statusID(device *resourcev1.AllocatedDeviceStatus) string {
	return deviceID(device.Driver, device.Pool, device.Device, device.ShareID)
}

// prepareClaimStatus drops the status of devices that the claim no longer has, so that a writer that deallocates a device
// need not handle the drivers' status.
func prepareClaimStatus(status, old *resourcev1.ResourceClaimStatus) {
	lost := allocatedDevices(old.Allocation).Difference(allocatedDevices(status.Allocation))
	status.Devices = slices.DeleteFunc(status.Devices, func(device resourcev1.AllocatedDeviceStatus) bool {
		return lost.Has(statusID(&device))
	})
	if len(status.Devices) == 0 {
		status.Devices = nil
	}
	if status.Allocation == nil || skipsNodeOperations(old.Allocation) {
		return
	}
	for i := range status.Allocation.Devices.Results {
		status.Allocation.Devices.Results[i].SkipNodeOperations = nil
	}
}

func skipsNodeOperations(allocation *resourcev1.AllocationResult) bool {
	return allocation != nil && slices.ContainsFunc(allocation.Devices.Results, func(result resourcev1.DeviceRequestAllocationResult) bool {
		return len(result.SkipNodeOperations) > 0
	})
}

func validateClaimStatus(_ *kind.Request, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	status, path := &claim.Status, field.NewPath("status")
	errs := validateSet(status.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, validateConsumer,
		func(consumer *resourcev1.ResourceClaimConsumerReference) types.UID { return consumer.UID }, path.Child("reservedFor"))
	allocated := allocatedDevices(status.Allocation)
	errs = append(errs, validateSet(status.Devices, unbounded, func(device *resourcev1.AllocatedDeviceStatus, path *field.Path) field.ErrorList {
		return validateDeviceStatus(device, allocated, path)
	}, statusID, path.Child("devices"))...)
	if len(status.ReservedFor) > 0 {
		switch {
		case status.Allocation == nil:
			errs = append(errs, field.Forbidden(path.Child("reservedFor"), "may not be specified when `allocated` is not set"))
		case claim.DeletionTimestamp != nil && !sets.New(old.Status.ReservedFor...).HasAll(status.ReservedFor...):
			errs = append(errs, field.Forbidden(path.Child("reservedFor"), "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"))
		}
	}
	switch {
	case status.Allocation == nil:
	case old.Status.Allocation == nil:
		errs = append(errs, validateAllocation(status.Allocation, requestNames(&claim.Spec.Devices), path.Child("allocation"))...)
	case !equality.Semantic.DeepEqual(status.Allocation, old.Status.Allocation):
		errs = append(errs, field.Invalid(path.Child("allocation"), nil, "field cannot be modified once set"))
	}
	return errs
}

func validateConsumer(consumer *resourcev1.ResourceClaimConsumerReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if consumer.Resource == "" {
		errs = append(errs, field.Required(path.Child("resource"), ""))
	}
	if consumer.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	if consumer.UID == "" {
		errs = append(errs, field.Required(path.Child("uid"), ""))
	}
	return errs
}

func validateAllocation(allocation *resourcev1.AllocationResult, names sets.Set[string], path *field.Path) field.ErrorList {
	devices := path.Child("devices")
	errs := validateSlice(allocation.Devices.Results, resourcev1.AllocationResultsMaxSize,
		func(result *resourcev1.DeviceRequestAllocationResult, path *field.Path) field.ErrorList {
			return validateResult(result, names, path)
		}, devices.Child("results"))
	errs = append(errs, validateSlice(allocation.Devices.Config, 2*resourcev1.DeviceConfigMaxSize,
		func(config *resourcev1.DeviceAllocationConfiguration, path *field.Path) field.ErrorList {
			var errs field.ErrorList
			switch config.Source {
			case resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass:
			case "":
				errs = append(errs, field.Required(path.Child("source"), ""))
			default:
				errs = append(errs, field.NotSupported(path.Child("source"), config.Source,
					[]resourcev1.AllocationConfigSource{resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass}))
			}
			errs = append(errs, validateRequestRefs(config.Requests, names, path.Child("requests"))...)
			return append(errs, validateConfiguration(&config.DeviceConfiguration, false, path)...)
		}, devices.Child("config"))...)
	if allocation.NodeSelector != nil {
		errs = append(errs, podspec.ValidateNodeSelector(allocation.NodeSelector, false, path.Child("nodeSelector"))...)
	}
	return errs
}

func validateResult(result *resourcev1.DeviceRequestAllocationResult, names sets.Set[string], path *field.Path) field.ErrorList {
	errs := validateRequestRef(result.Request, names, path.Child("request"))
	errs = append(errs, validateDriverReference(&result.Driver, path.Child("driver"))...)
	errs = append(errs, validatePoolReference(&result.Pool, path.Child("pool"))...)
	errs = append(errs, validateDNSLabel(result.Device, path.Child("device"))...)
	errs = append(errs, validateBindingConditions(result.BindingConditions, result.BindingFailureConditions, path)...)
	errs = append(errs, validateSlice(result.Tolerations, unbounded, validateToleration, path.Child("tolerations"))...)
	if result.ShareID != nil {
		errs = append(errs, validateUUID(result.ShareID, path.Child("shareID"))...)
	}
	return errs
}

func validateDeviceStatus(device *resourcev1.AllocatedDeviceStatus, allocated sets.Set[string], path *field.Path) field.ErrorList {
	errs := validateDriverName(device.Driver, path.Child("driver"))
	errs = append(errs, validatePoolName(device.Pool, path.Child("pool"))...)
	errs = append(errs, validateDNSLabel(device.Device, path.Child("device"))...)
	if device.ShareID != nil {
		errs = append(errs, validateUUID(device.ShareID, path.Child("shareID"))...)
	}
	if id := statusID(device); !allocated.Has(id) {
		errs = append(errs, field.Invalid(path, id, "must be an allocated device in the claim"))
	}
	conditions := path.Child("conditions")
	if len(device.Conditions) > resourcev1.AllocatedDeviceStatusMaxConditions {
		errs = append(errs, field.TooMany(conditions, len(device.Conditions), resourcev1.AllocatedDeviceStatusMaxConditions))
	}
	errs = append(errs, metavalidation.ValidateConditions(device.Conditions, conditions)...)
	if device.Data != nil && len(device.Data.Raw) > 0 {
		errs = append(errs, validateObject(device.Data, false, resourcev1.AllocatedDeviceStatusDataMaxLength, path.Child("data"))...)
	}
	return append(errs, validateNetworkData(device.NetworkData, path.Child("networkData"))...)
}

func validateNetworkData(data *resourcev1.NetworkDeviceData, path *field.Path) field.ErrorList {
	if data == nil {
		return nil
	}
	var errs field.ErrorList
	if max := resourcev1.NetworkDeviceDataInterfaceNameMaxLength; len(data.InterfaceName) > max {
		errs = append(errs, field.TooLong(path.Child("interfaceName"), data.InterfaceName, max))
	}
	if max := resourcev1.NetworkDeviceDataHardwareAddressMaxLength; len(data.HardwareAddress) > max {
		errs = append(errs, field.TooLong(path.Child("hardwareAddress"), data.HardwareAddress, max))
	}
	return append(errs, validateSet(data.IPs, resourcev1.NetworkDeviceDataMaxIPs, func(address *string, path *field.Path) field.ErrorList {
		return utilvalidation.IsValidInterfaceAddress(path, *address)
	}, identity, path.Child("ips"))...)
}
