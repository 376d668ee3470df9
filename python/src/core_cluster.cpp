#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "medley/base/error.h"
#include "medley/cluster/cluster.h"
#include "medley/cluster/kind_names.h"
#include "medley/cluster/slowed.h"
#include "medley/network/topology.h"

namespace nb = nanobind;

namespace {

std::vector<std::string> device_names(const medley::Cluster& cluster) {
  std::vector<std::string> names;
  for (const medley::Device& device : cluster.devices) names.push_back(device.name);
  return names;
}

std::vector<std::pair<std::string, double>> links(const medley::Cluster& cluster) {
  const medley::Topology topology(cluster);
  std::vector<std::pair<std::string, double>> result;
  for (const medley::Link& link : topology.links())
    result.emplace_back(link.name, link.bandwidth.value);
  return result;
}

int checked(const medley::Cluster& cluster, int device) {
  if (device < 0 || device >= static_cast<int>(cluster.devices.size()))
    throw medley::Error(medley::Blame::kCaller, "no such device: " + std::to_string(device));
  return device;
}

std::pair<std::vector<std::string>, double> path(const medley::Cluster& cluster, int from, int to) {
  const medley::Topology topology(cluster);
  const medley::Path found = topology.path(checked(cluster, from), checked(cluster, to));
  std::vector<std::string> names;
  for (const int link : found.links)
    names.push_back(topology.links()[static_cast<size_t>(link)].name);
  return {names, static_cast<double>(found.latency.value) * 1e-9};
}

}  // namespace

void init_cluster(nb::module_& m) {
  using medley::Cluster;
  using medley::DeviceKind;
  using medley::Network;

  nb::class_<DeviceKind>(
      m,
      "DeviceKind",
      "A device type: rates in flop/s by dtype, memory in bytes, times in seconds.")
      .def_ro("name", &DeviceKind::name)
      .def_ro("base", &DeviceKind::base)
      .def_ro("memory_bytes", &DeviceKind::memory_bytes)
      .def_ro("memory_bandwidth", &DeviceKind::memory_bandwidth)
      .def_ro("launch_latency", &DeviceKind::launch_latency)
      .def_ro("link", &DeviceKind::link)
      .def(
          "peak",
          [](const DeviceKind& kind, const std::string& dtype) -> std::optional<double> {
            const auto parsed = medley::parse_dtype(dtype);
            const auto rate = parsed ? kind.peak.find(*parsed) : kind.peak.end();
            return rate == kind.peak.end() ? std::nullopt : std::optional(rate->second);
          },
          nb::arg("dtype"))
      .def(
          "sustained",
          [](const DeviceKind& kind, const std::string& dtype) -> std::optional<double> {
            const auto parsed = medley::parse_dtype(dtype);
            const auto rate = parsed ? kind.sustained.find(*parsed) : kind.sustained.end();
            return rate == kind.sustained.end() ? std::nullopt : std::optional(rate->second);
          },
          nb::arg("dtype"));

  nb::class_<Network>(m, "Network", "A network: bandwidth in bytes/s per port, latency in seconds.")
      .def_ro("name", &Network::name)
      .def_ro("inside_node", &Network::inside_node)
      .def_ro("connects", &Network::connects)
      .def_ro("bandwidth", &Network::bandwidth)
      .def_ro("latency", &Network::latency);

  nb::class_<Cluster>(m,
                      "Cluster",
                      "The devices and links of a cluster.yaml.\n\nExample:\n"
                      "    cluster = load_cluster(\"cluster.yaml\")\n"
                      "    for number, name in enumerate(cluster.devices):\n"
                      "        print(name, cluster.kind(number).memory_bytes)")
      .def_static(
          "parse_text",
          [](const std::string& text,
             const std::string& file,
             const std::filesystem::path& catalogue) {
            return medley::parse_cluster(text, file, medley::read_catalogue(catalogue));
          },
          nb::arg("text"),
          nb::arg("file"),
          nb::arg("catalogue"),
          "Parses a text. `file` is for error messages. Raises ValueError naming the invalid line.")
      .def_prop_ro("devices", &device_names, "The names in the order of device numbers.")
      .def(
          "kind",
          [](const Cluster& cluster, int device) { return cluster.kind(checked(cluster, device)); },
          nb::arg("device"),
          "Returns the type of a device: its rates and its memory.")
      .def(
          "is_preemptible",
          [](const Cluster& cluster, int device) {
            const int pool = cluster.devices[static_cast<size_t>(checked(cluster, device))].pool;
            return cluster.pools[static_cast<size_t>(pool)].preemptible;
          },
          nb::arg("device"),
          "Returns whether the pool of a device is preemptible.")
      .def_ro("networks", &Cluster::networks, "The networks in the order of the file.")
      .def(
          "node",
          [](const Cluster& cluster, int device) {
            const medley::Device& found =
                cluster.devices[static_cast<size_t>(checked(cluster, device))];
            return found.name.substr(0, found.name.rfind('/'));
          },
          nb::arg("device"),
          "Returns the name of a device's node, such as \"fast/0\".")
      .def(
          "find",
          [](const Cluster& cluster, const std::string& name) {
            return find_device(cluster, name);
          },
          nb::arg("name"),
          "Returns the number of the device of this name, or None.")
      .def(
          "slowed",
          [](const Cluster& cluster, const std::map<int, double>& speeds) {
            for (const auto& [device, speed] : speeds)
              if (checked(cluster, device); !(speed > 0))
                throw medley::Error(medley::Blame::kCaller,
                                    "speed: must be positive: " + std::to_string(speed));
            return slowed(cluster, speeds);
          },
          nb::arg("speeds"),
          "Returns the cluster with other speeds of some devices, by number and relative to their "
          "type. Each of them has a type with a new name.")
      .def(
          "corrected",
          [](const Cluster& cluster,
             const std::map<std::string, std::pair<double, double>>& kinds,
             const std::map<std::string, std::pair<double, double>>& networks) {
            std::map<std::string, medley::OpFactors> ops;
            std::map<std::string, medley::LinkFactors> links;
            for (const auto& [name, factors] : kinds) ops[name] = {factors.first, factors.second};
            for (const auto& [name, factors] : networks)
              links[name] = {factors.first, factors.second};
            return corrected(cluster, ops, links);
          },
          nb::arg("kinds"),
          nb::arg("networks"),
          "Returns the cluster with corrected figures. `kinds`: times of ops limited by flops and "
          "by memory, relative to the type's. `networks`: relative bandwidth, additional seconds "
          "of latency.")
      .def_prop_ro("links",
                   &links,
                   "(name, bytes/s) of every link and direction, such as \"lan:fast/0:out\".")
      .def("path",
           &path,
           nb::arg("from_"),
           nb::arg("to"),
           "Returns the names of the links between two devices, and the latency in seconds.")
      .def_prop_ro(
          "hash",
          [](const Cluster& cluster) { return hash(cluster); },
          "The SHA-256 of the cluster, independent of the layout of its file.");

  m.def(
      "kinds_meant",
      [](const std::string& name, const std::filesystem::path& catalogue) {
        return medley::kinds_meant(medley::read_catalogue(catalogue), name);
      },
      nb::arg("name"),
      nb::arg("catalogue"),
      "Returns the device types of the catalogue that match a name: none, one, or several.");
  m.def(
      "near_kinds",
      [](const std::string& name, const std::filesystem::path& catalogue) {
        std::vector<std::string> known;
        for (const auto& [each, kind] : medley::read_catalogue(catalogue)) known.push_back(each);
        return medley::near_names(known, name);
      },
      nb::arg("name"),
      nb::arg("catalogue"),
      "Returns the device types with names similar to an unknown one.");
}
